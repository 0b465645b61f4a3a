"""Finds the sequence that the target does not survive, and keeps others from being blamed for it.

Whoever was in flight when a pipeline was lost, and has not got beyond that place since, is counted. Losses happen, so
one means nothing. After the second in a row a sequence is tried alone: all others of the lane are held back until it
has got beyond the place, or has lost the target once more. Then it was the only one, and it fails. Knows no sockets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence, State

SUSPECTED = 2  # losses in a row after which a sequence runs alone
MOST_LOSSES = 3  # in a row; the last of them alone


@dataclass(slots=True)
class Losses:
    """What happened to one sequence since it last got on."""

    n: int = 0
    n_cached: int = 0  # tokens that the target had read of it, at most


class Quarantine:
    """Holds sequences of one lane back from its scheduler.

    Args:
        scheduler: of the lane.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._losses: dict[int, Losses] = {}
        self._held: list[Sequence] = []
        self._tried: Sequence | None = None

    @property
    def held(self) -> list[Sequence]:
        """Those that are held back: not known to the scheduler."""
        return self._held

    def lost(self, in_flight: Iterable[Sequence]) -> list[Sequence]:
        """The pipeline is lost; to be called before the scheduler hears of it. Returns who cost it."""
        guilty = []
        for sequence in in_flight:
            if sequence.cancelled or sequence.state is State.FINISHED:
                continue
            losses = self._losses.setdefault(sequence.seq, Losses())
            losses.n += 1
            losses.n_cached = max(losses.n_cached, sequence.n_cached)
            if losses.n >= MOST_LOSSES:
                guilty.append(sequence)
        return guilty

    def answered(self, sequence: Sequence) -> None:
        """The target survived a step with a sequence: that clears it, unless it had come as far before."""
        losses = self._losses.get(sequence.seq)
        if losses is not None and (sequence.state is State.FINISHED or sequence.n_cached > losses.n_cached):
            del self._losses[sequence.seq]

    def is_suspected(self, sequence: Sequence) -> bool:
        """Whether a sequence must not run beside others."""
        losses = self._losses.get(sequence.seq)
        return losses is not None and losses.n >= SUSPECTED and not sequence.cancelled

    def may_send(self) -> bool:
        """Whether the scheduler, as it is now, may form a step; decides who is held back."""
        if not self._losses and not self._held:
            return True
        self._choose()
        if self._tried is None:
            self._release()
            return True
        for sequence in [*self._scheduler.sequences]:
            if sequence is not self._tried and not sequence.in_flight:
                self._scheduler.withdraw(sequence)
                self._held.append(sequence)
        if any(sequence is not self._tried for sequence in self._scheduler.sequences):
            return False  # others are in flight
        if self._tried in self._held:
            self._held.remove(self._tried)
            self._scheduler.adopt(self._tried)
        return True

    def _choose(self) -> None:
        if self._tried is not None and self.is_suspected(self._tried):
            return
        suspected = [one for one in (*self._held, *self._scheduler.sequences) if self.is_suspected(one)]
        self._tried = min(suspected, key=turn, default=None)

    def _release(self) -> None:
        held, self._held = self._held, []
        for sequence in sorted(held, key=turn):
            self._scheduler.adopt(sequence)

    def forget(self, sequence: Sequence) -> None:
        """A sequence is to end: nothing is held against it, and the scheduler knows it."""
        self._losses.pop(sequence.seq, None)
        if sequence in self._held:
            self._held.remove(sequence)
            self._scheduler.adopt(sequence)

    def withdraw(self, sequence: Sequence) -> Losses | None:
        """Give a sequence that is in no step away, and what is held against it."""
        if sequence in self._held:
            self._held.remove(sequence)
        else:
            self._scheduler.withdraw(sequence)
        return self._losses.pop(sequence.seq, None)

    def adopt(self, sequence: Sequence, losses: Losses | None) -> None:
        """Take a sequence over that another lane has withdrawn."""
        if losses is not None:
            self._losses[sequence.seq] = losses
        self._scheduler.adopt(sequence)


def turn(sequence: Sequence) -> tuple[int, int]:
    """Whose turn it is, of sequences that have begun."""
    return sequence.priority, sequence.seq
