"""Sleeping until a moment, to a few dozen microseconds: the timer's delay is measured and subtracted.

An event loop's or a kernel's timer wakes a thread 60 to 200 microseconds late; over the stages of a pipeline that would
look like a cost of scheduling. So a sleep ends early by the usual delay, and a busy loop waits for the rest.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

FIRST_DELAY_S = 1e-4  # the timer's delay before any was measured
LONGEST_DELAY_S = 5e-4  # a longer delay comes from a busy machine, not from the timer
SMOOTHING = 0.1  # weight of the newest delay in the average


@dataclass(slots=True)
class Lateness:
    """How late sleeps ended, in seconds."""

    sleeps: int = 0
    total: float = 0.0
    worst: float = 0.0

    @property
    def mean(self) -> float:
        """Over all sleeps."""
        return self.total / max(1, self.sleeps)


class DeadlineSleep:
    """Sleeps of one thread, and how late they ended."""

    def __init__(self) -> None:
        self.lateness = Lateness()
        self._delay = FIRST_DELAY_S

    def until(self, deadline: float) -> None:
        """Return at ``deadline`` (``time.perf_counter``); at once if it is past, which counts as late too."""
        wake = deadline - self._delay
        if (remaining := wake - time.perf_counter()) > 0.0:
            time.sleep(remaining)
            self._learn(time.perf_counter() - wake)
        while (now := time.perf_counter()) < deadline:
            pass
        self.lateness.sleeps += 1
        self.lateness.total += now - deadline
        self.lateness.worst = max(self.lateness.worst, now - deadline)

    def _learn(self, delay: float) -> None:
        self._delay += SMOOTHING * (min(delay, LONGEST_DELAY_S) - self._delay)
