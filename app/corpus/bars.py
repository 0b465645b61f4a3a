"""Progress bars and times of the phases of a build."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm


def bar(what: str, total: int | None, unit: str) -> Any:
    """A bar on stderr with an estimate of the time left; a total that is not known has none."""
    return tqdm(total=total, desc=what, unit=unit, unit_scale=True, file=sys.stderr, mininterval=0.5)


@dataclass(slots=True)
class Phases:
    """Seconds and tokens of each phase, in order; tokens are those that this run worked on."""

    seconds: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measure what is done inside."""
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def count(self, name: str, tokens: int) -> None:
        """Say how many tokens a phase has worked on."""
        self.tokens[name] = self.tokens.get(name, 0) + tokens

    @property
    def total(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())

    def figures(self) -> dict[str, dict[str, float]]:
        """For the report."""
        found: dict[str, dict[str, float]] = {}
        for name, seconds in self.seconds.items():
            found[name] = {"seconds": round(seconds, 3)}
            if name in self.tokens:
                rate = self.tokens[name] / seconds if seconds else 0.0
                found[name] |= {"tokens": self.tokens[name], "tokens_per_second": round(rate, 1)}
        return found


class SnapshotBar:
    """Shows the phases of ``write_snapshot`` one after the other."""

    def __init__(self) -> None:
        self._phase = ""
        self._bar: Any = None

    def __call__(self, phase: str, done: int, total: int) -> None:
        """See ``retrieval_store.snapshots.snapshot_writer.Progress``."""
        if phase != self._phase:
            self.close()
            self._phase, self._bar = phase, bar(f"snapshot: {phase}", total or None, "")
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """End the bar that is shown; what it counted is done."""
        if self._bar is not None:
            self._bar.update((self._bar.total or self._bar.n) - self._bar.n)
            self._bar.close()
            self._bar = None
