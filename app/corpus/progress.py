"""Times and progress bars of the phases of a build."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from app.reporting.report import bar

BAR: dict[str, Any] = {"unit_scale": True, "mininterval": 0.5}  # options of all bars of a build


@dataclass(slots=True)
class Phases:
    """Seconds and tokens of each phase, in order; tokens of earlier runs do not count."""

    seconds: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time of the context to a phase."""
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def count(self, name: str, tokens: int) -> None:
        """Add tokens to a phase."""
        self.tokens[name] = self.tokens.get(name, 0) + tokens

    @property
    def total(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())

    def figures(self) -> dict[str, dict[str, float]]:
        """Seconds, tokens and tokens per second by phase, for the report."""
        found: dict[str, dict[str, float]] = {}
        for name, seconds in self.seconds.items():
            found[name] = {"seconds": round(seconds, 3)}
            if name in self.tokens:
                rate = self.tokens[name] / seconds if seconds else 0.0
                found[name] |= {"tokens": self.tokens[name], "tokens_per_second": round(rate, 1)}
        return found


class SnapshotBar:
    """Shows the phases of ``write_snapshot``, each as a bar of its own."""

    def __init__(self) -> None:
        self._phase = ""
        self._bar: Any = None

    def __call__(self, phase: str, done: int, total: int) -> None:
        """See ``retrieval_store.snapshots.snapshot_writer.Progress``."""
        if phase != self._phase:
            self.close()
            self._phase, self._bar = phase, bar(f"snapshot: {phase}", total or None, "", **BAR)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Fill and close the present bar."""
        if self._bar is not None:
            self._bar.update((self._bar.total or self._bar.n) - self._bar.n)
            self._bar.close()
            self._bar = None
