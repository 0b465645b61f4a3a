"""Time in a simulated pipeline: sleeps that end on time, and links that deliver hidden states later.

The timer of an event loop or a kernel wakes a thread 60 to 200 microseconds late, which over the stages of a pipeline
would look like a cost of scheduling. So a sleep ends early by the usual delay, and a busy loop waits for the rest.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from engine.simulated.profile import PipelineProfile
from engine.stage.base import Activations

LONGEST_S = 60.0  # seconds; a time of arrival further away is from another machine's clock
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
        return self.total / max(1, self.sleeps)


class DeadlineSleep:
    """Sleeps of one thread, and how late they ended."""

    def __init__(self) -> None:
        self.lateness = Lateness()
        self._delay = FIRST_DELAY_S

    def until(self, deadline: float) -> None:
        """Return at ``deadline`` (``time.perf_counter``); at once if it is past, which counts as late."""
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


class SimulatedLink:
    """The links of one simulated stage: from the previous stage and to the next.

    Hidden states take their time, though only their time of arrival travels. Both ends read the same clock, so stages
    with simulated links must run on one machine.
    """

    def __init__(self, profile: PipelineProfile) -> None:
        self._profile = profile
        self._free_at = 0.0  # when the link to the next stage has sent everything

    def arrival(self, incoming: Activations | None, now: float) -> float:
        """``time.perf_counter`` when the hidden states arrive; ``now`` if they have, or on the first stage."""
        if incoming is None:
            return now
        moment = float(incoming.hidden.reshape(-1).contiguous().view(torch.float64)[0])
        return moment if now < moment < now + LONGEST_S else now

    def departure(self, ended: float, n_rows: int) -> Activations:
        """The time of arrival, as fp32 ``[1, 1, 2]``, of ``n_rows`` rows that the stage finished at ``ended``.

        The link sends one step after the other; its latency does not delay the next send.
        """
        self._free_at = max(self._free_at, ended) + self._profile.wire_seconds(n_rows)
        moment = torch.tensor([self._free_at + self._profile.link_latency_s], dtype=torch.float64)
        return Activations(moment.view(torch.float32).reshape(1, 1, 2))
