"""Reports the progress of a server's start on stderr."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

WORK = {
    "Target": "stages load the model, and warm up",
    "Retrieval": "the store opens, and its snapshot loads",
    "AnswerKeeper": "it reads the answers that an earlier one left",
    "Router": "methods compile and index their texts, step times are measured; kept for the next start",
    "Ingress": "the tokenizer loads, HTTP opens",
}
"""Deployment -> what it does before it is up."""
PHASES = ("import", "plan", "resolve", "check", "read", "build", "connect")  # of a target's start, in order
SHOWN_S = 0.05  # a phase that took less is left out
PATIENCE_S = 15.0  # without a line, after which a line names the deployments that are not up

logger = logging.getLogger(__name__)


class StartProgress:
    """Prints a line for each stage of the start on stderr, or logs it; stdout is for ``Ready`` alone."""

    def __init__(self, is_logged: bool = False) -> None:
        self._start = self._last = time.monotonic()
        self._is_logged = is_logged
        self._statuses: dict[str, str] = {}  # by deployment

    def say(self, text: str) -> None:
        self._last = time.monotonic()
        seconds = self._last - self._start
        self._write(text, f"{seconds:7.1f} s  {text}", {"seconds": round(seconds, 1)})

    def announce(self, text: str) -> None:
        self._write(text, text)

    def _write(self, message: str, line: str, extra: Mapping[str, float] | None = None) -> None:
        if self._is_logged:
            logger.info(message, extra=extra)
        else:
            print(line, file=sys.stderr, flush=True)

    def follow(self, statuses: Mapping[str, str], took: Callable[[str], str] = lambda _: "") -> None:
        """Print which deployments have started or come up since the last call, by the statuses that Serve reports.

        ``took`` returns a text on the start of a deployment.
        """
        for name, status in statuses.items():
            before, self._statuses[name] = self._statuses.get(name), status
            if before is None:
                self.say(f"{name} starts: {WORK[name.partition('-')[0]]}")
            if before != status == "HEALTHY":
                self.say(f"{name} is up{took(name)}")
        missing = [name for name, status in self._statuses.items() if status != "HEALTHY"]
        if missing and time.monotonic() - self._last > PATIENCE_S:
            self.say(f"waiting for {', '.join(missing)}")


def phases_of(state: Mapping[str, Any]) -> str:
    """Return the times of a target's start by its state, as in ``: import 4.1 s, read 5.2 s, 12.10 GiB of weights``.

    Of a phase that every stage has, the longest is shown.
    """
    seconds, stages = dict(state["load_seconds"]), state["stages"]
    for phase in {name for stage in stages for name in stage["load_seconds"]}:
        seconds[phase] = max(stage["load_seconds"].get(phase, 0.0) for stage in stages)
    parts = [f"{phase} {seconds[phase]:.1f} s" for phase in PHASES if seconds.get(phase, 0.0) >= SHOWN_S]
    if n_read := sum(stage["read_bytes"] for stage in stages):
        parts.append(f"{n_read / (1 << 30):.2f} GiB of weights")
    return f": {', '.join(parts)}" if parts else ""
