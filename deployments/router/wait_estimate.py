"""How long newcomers would wait in a lane, worked out for all of them at once. Refuses nobody."""

from __future__ import annotations

from collections import Counter

from deployments.router.service_rate import Pace, seconds_until_a_place
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence


class Waits:
    """A lane's queue and the company in it, of one moment: asking costs no walk through them.

    Args:
        scheduler: of the lane.
        pace: of the lane.
    """

    def __init__(self, scheduler: Scheduler, pace: Pace) -> None:
        self._line = scheduler.line()
        self.waiting = Counter(sequence.tenant for sequence in self._line.sequences)  # sequences of every tenant
        self._until: list[float] = []  # seconds until a place is free behind so many of the queue
        if pace.is_known:
            running = [pace.remaining(sequence) for sequence in scheduler.running]
            n_places = max(len(running), _n_places(scheduler, pace))
            queue = (pace.remaining(sequence) for sequence in self._line.sequences)
            self._until = seconds_until_a_place(n_places, running, queue)

    def of(self, newcomer: Sequence) -> float | None:
        """Seconds until it would start, by what is ahead of it; None while nothing is known."""
        return self._until[self._line.n_ahead(newcomer)] if self._until else None


def _n_places(scheduler: Scheduler, pace: Pace) -> int:
    """Sequences that can run side by side: so many are allowed, and so many of the present length fit."""
    live, info = scheduler.sequences, scheduler.info
    if not live:
        return scheduler.options.max_sequences
    tokens = sum(len(sequence.tokens) + pace.expected_output(sequence) for sequence in live)
    fit = info.n_blocks * info.block_size * len(live) / tokens
    return max(1, min(scheduler.options.max_sequences, int(fit)))
