"""Finds poison requests: sequences that crash or hang the target whenever it runs them.

A pipeline loss counts against every sequence that was in flight, until that sequence gets past the position it had
reached. One loss means nothing, because pipelines fail for many reasons. After ``SUSPECTED`` losses in a row a sequence
runs alone, and all others of the lane are held back. If it gets past the position, the others continue. If the target
is lost again, no other sequence was in flight, and the sequence fails. Knows no sockets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence, SequenceState

SUSPECTED = 2  # losses in a row after which a sequence runs alone
MAX_LOSSES = 3  # losses in a row after which a sequence fails


@dataclass(slots=True)
class Losses:
    """Losses in a row of one sequence."""

    n: int = 0
    n_cached: int = 0  # most tokens in the KV cache at a loss


class PoisonRequests:
    """Counts losses per sequence of one lane, and holds sequences back from its scheduler.

    Args:
        scheduler: of the lane.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._losses: dict[int, Losses] = {}
        self._held: list[Sequence] = []
        self._suspect: Sequence | None = None  # runs alone

    @property
    def held(self) -> list[Sequence]:
        """Sequences that are held back; they are not in the scheduler."""
        return self._held

    def on_loss(self, in_flight: Iterable[Sequence]) -> list[Sequence]:
        """Count a pipeline loss, before the scheduler handles it; returns the poison requests found."""
        poison = []
        for sequence in in_flight:
            if sequence.cancelled or sequence.state is SequenceState.FINISHED:
                continue
            losses = self._losses.setdefault(sequence.seq, Losses())
            losses.n += 1
            losses.n_cached = max(losses.n_cached, sequence.n_cached)
            if losses.n >= MAX_LOSSES:
                poison.append(sequence)
        return poison

    @property
    def has_suspicions(self) -> bool:
        """Whether losses are counted against any sequence."""
        return bool(self._losses)

    def on_progress(self, sequence: Sequence) -> None:
        """Clear a sequence of suspicion once it is past the position of its losses."""
        losses = self._losses.get(sequence.seq)
        if losses is not None and (sequence.state is SequenceState.FINISHED or sequence.n_cached > losses.n_cached):
            del self._losses[sequence.seq]

    def is_suspected(self, sequence: Sequence) -> bool:
        """Whether a sequence must run alone."""
        losses = self._losses.get(sequence.seq)
        return losses is not None and losses.n >= SUSPECTED and not sequence.cancelled

    def may_send(self) -> bool:
        """Hold sequences back or release them; returns whether the scheduler may form a step now."""
        if not self._losses and not self._held:
            return True
        self._choose_suspect()
        if self._suspect is None:
            self._release()
            return True
        for sequence in [*self._scheduler.sequences]:
            if sequence is not self._suspect and not sequence.in_flight:
                self._scheduler.withdraw(sequence)
                self._held.append(sequence)
        if any(sequence is not self._suspect for sequence in self._scheduler.sequences):
            return False  # steps with other sequences are in flight
        if self._suspect in self._held:
            self._held.remove(self._suspect)
            self._scheduler.adopt(self._suspect)
        return True

    def _choose_suspect(self) -> None:
        if self._suspect is not None and self.is_suspected(self._suspect):
            return
        suspected = [one for one in (*self._held, *self._scheduler.sequences) if self.is_suspected(one)]
        self._suspect = min(suspected, key=queue_order, default=None)

    def _release(self) -> None:
        held, self._held = self._held, []
        for sequence in sorted(held, key=queue_order):
            self._scheduler.adopt(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Drop the losses of a sequence that ends; one that was held back returns to the scheduler."""
        self._losses.pop(sequence.seq, None)
        if sequence in self._held:
            self._held.remove(sequence)
            self._scheduler.adopt(sequence)

    def withdraw(self, sequence: Sequence) -> Losses | None:
        """Remove a sequence that is not in flight, for another lane; returns its losses."""
        if sequence in self._held:
            self._held.remove(sequence)
        else:
            self._scheduler.withdraw(sequence)
        return self._losses.pop(sequence.seq, None)

    def adopt(self, sequence: Sequence, losses: Losses | None) -> None:
        """Add a sequence that another lane has withdrawn, with its losses there."""
        if losses is not None:
            self._losses[sequence.seq] = losses
        self._scheduler.adopt(sequence)


def queue_order(sequence: Sequence) -> tuple[int, int]:
    """Sort key: priority, then order of arrival."""
    return sequence.request.priority, sequence.seq
