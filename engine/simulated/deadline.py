"""Sleeping until a moment, to a few dozen microseconds: what the timer adds is learnt and left out.

An event loop's or a kernel's timer wakes a thread 60 to 200 microseconds late; over the stages of a pipeline that would
look like a cost of scheduling. So a sleep ends early by the usual delay, and the rest is waited for actively.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

FIRST_DELAY_S = 1e-4  # before any was seen
LONGEST_DELAY_S = 5e-4  # a longer one was a busy machine, not the timer
SMOOTHING = 0.1  # of the newest delay


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
    """For one thread."""

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
