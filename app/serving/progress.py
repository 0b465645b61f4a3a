"""What a starting server says on stderr: each stage of the start with the seconds since the command."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

WORK: Mapping[str, str] = MappingProxyType(
    {
        "Target": "stages load the model, and warm up",
        "Retrieval": "the store is opened, its snapshot loaded",
        "Router": "methods compile and index their texts, step times are measured; kept for the next start",
        "Ingress": "the tokenizer loads, HTTP opens",
    }
)
"""What a deployment does before it is up."""


PHASES = ("import", "plan", "resolve", "check", "read", "build", "connect")  # of a target's start, in their order
SHOWN_S = 0.05  # a phase that took less is left out
PATIENCE_S = 15.0  # without a line, before one says what is waited for

logger = logging.getLogger(__name__)


class StartProgress:
    """Prints a line per stage of the start; stdout is for ``Ready`` alone.

    Args:
        is_logged: whether a program reads the lines: then they are of the form of all other log lines.
        patience: seconds without a line, before one says what is waited for.
    """

    def __init__(self, is_logged: bool = False, patience: float = PATIENCE_S) -> None:
        self._start = self._said = time.monotonic()
        self._patience = patience
        self._is_logged = is_logged
        self._seen: dict[str, object] = {}  # deployment -> its status

    def say(self, text: str) -> None:
        """Print ``text`` with the seconds since the start."""
        self._said = time.monotonic()
        seconds = self._said - self._start
        if self._is_logged:
            logger.info(text, extra={"seconds": round(seconds, 1)})
        else:
            print(f"{seconds:7.1f} s  {text}", file=sys.stderr, flush=True)

    def announce(self, text: str) -> None:
        """Print ``text`` as it is."""
        if self._is_logged:
            logger.info(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def follow(self, statuses: Mapping[str, str], took: Callable[[str], str] = lambda _: "") -> None:
        """Print what changed: the statuses of an application's deployments, by name, as Serve tells them.

        ``took`` says what the start of one consisted of, given its name; "": nothing that is known.
        """
        for name, status in statuses.items():
            before, self._seen[name] = self._seen.get(name), status
            if before is None:
                self.say(f"{name} starts: {WORK[name.partition('-')[0]]}")
            if before != status == "HEALTHY":
                self.say(f"{name} is up{took(name)}")
        waited = [name for name, status in self._seen.items() if status != "HEALTHY"]
        if waited and time.monotonic() - self._said > self._patience:
            self.say(f"waiting for {', '.join(waited)}")


def phases_of(state: Mapping[str, Any]) -> str:
    """What a target's start took, of its state: ``: import 4.1 s, read 5.2 s, 12.10 GiB of weights``.

    Of a phase that every stage has, the longest is told.
    """
    stages = state["stages"]
    seconds = dict(state["load_seconds"])
    for phase in {name for stage in stages for name in stage["load_seconds"]}:
        seconds[phase] = max(stage["load_seconds"].get(phase, 0.0) for stage in stages)
    told = [f"{phase} {seconds[phase]:.1f} s" for phase in PHASES if seconds.get(phase, 0.0) >= SHOWN_S]
    n_read = sum(stage["read_bytes"] for stage in stages)
    if n_read:
        told.append(f"{n_read / (1 << 30):.2f} GiB of weights")
    return f": {', '.join(told)}" if told else ""
