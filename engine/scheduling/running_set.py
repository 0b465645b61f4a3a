"""The running set: sequences that own KV blocks, and which of them is preempted when blocks run out.

Knows no steps and no queue.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator

from engine.errors import OutOfBlocksError
from engine.kv.blocks import BlockAllocator
from engine.scheduling.prefix_matcher import PrefixMatcher
from engine.scheduling.sequence import Sequence, SequenceState
from engine.tree import EMPTY_TREE


class RunningSet:
    """In order of arrival within a priority.

    Args:
        blocks: of the cache.
        prefixes: are told what sequences leave behind in their blocks.
        evicted: is handed every sequence that had to give up its blocks; it will be prefilled again (recompute).
        n_scratch: slots behind a tree or a prompt that the target's drafter needs to draft the next tree.
    """

    def __init__(
        self,
        blocks: BlockAllocator,
        prefixes: PrefixMatcher,
        evicted: Callable[[Sequence], None],
        n_scratch: int = 0,
    ) -> None:
        self.blocks = blocks
        self.prefixes = prefixes
        self._evicted = evicted
        self._n_scratch = n_scratch
        self._all: list[Sequence] = []
        self._ends: list[int] = []  # sequences the target still holds and should forget

    def __len__(self) -> int:
        """Sequences that own blocks."""
        return len(self._all)

    def __iter__(self) -> Iterator[Sequence]:
        """The sequences."""
        return iter(self._all)

    @property
    def has_ends(self) -> bool:
        """Whether the target holds a sequence that is gone."""
        return bool(self._ends)

    def take_ends(self) -> list[int]:
        """What the target is to forget; it is told once."""
        ends, self._ends = self._ends, []
        return ends

    def decoding(self) -> list[Sequence]:
        """Those whose text is in the cache, in flight or not."""
        return [sequence for sequence in self._all if sequence.state is not SequenceState.PREFILLING]

    @property
    def is_any_decoding(self) -> bool:
        """Whether any sequence decodes, or will as soon as the target has answered what was sent."""
        return any(not (sequence.is_reading or sequence.cancelled) for sequence in self._all)

    def ready(self) -> list[Sequence]:
        """Those whose tree awaits a step."""
        return [sequence for sequence in self._all if sequence.state is SequenceState.READY and not sequence.in_flight]

    def reading(self, depth: int) -> list[Sequence]:
        """Those whose next prompt chunk may be sent, when each may have ``depth`` in flight."""
        prefilling = [sequence for sequence in self._all if sequence.state is SequenceState.PREFILLING]
        return [sequence for sequence in prefilling if sequence.is_reading and sequence.in_flight < depth]

    def enter(self, sequence: Sequence) -> None:
        """A sequence comes out of the queue."""
        sequence.state, sequence.n_sent = SequenceState.PREFILLING, 0
        sequence.stats.count_entry()
        insort(self._all, sequence, key=lambda other: (other.request.priority, other.seq))

    def leave(self, sequence: Sequence) -> None:
        """A sequence is over: its blocks are free, the target will forget it."""
        if sequence in self._all:
            self._all.remove(sequence)
        if sequence.known:
            self.prefixes.keep(sequence)
            self._ends.append(sequence.seq)
            sequence.known = False
        self.blocks.release(sequence.seq)

    def evict(self, sequence: Sequence) -> None:
        """Drop the cache of a sequence; prompt and output are prefilled again later."""
        self.leave(sequence)
        sequence.n_cached, sequence.keep, sequence.tree = 0, [], EMPTY_TREE
        sequence.state = SequenceState.WAITING
        sequence.stats.n_preempted += 1
        self._evicted(sequence)

    def forget_target(self) -> None:
        """The target's state is gone: it has nothing to forget, and nothing is in flight."""
        self._ends.clear()
        self.prefixes.forget()
        for sequence in self._all:
            sequence.known = False
            sequence.in_flight = 0

    def make_room(self, sequence: Sequence) -> list[int] | None:
        """New blocks for a tree; short of memory, first the draft goes, then the least important, latest sequence.

        Returns None while every candidate for preemption has a step in flight, or once ``sequence`` itself was
        preempted; the caller retries on the next step. No sequence is preempted for one behind it.
        """
        while True:
            try:
                return self.grow(sequence, sequence.n_cached + 1 + len(sequence.tree.tokens))
            except OutOfBlocksError:
                if len(sequence.tree):
                    sequence.tree = EMPTY_TREE
                    continue
                victim = self._victim()
                if victim is None or (victim is sequence and sequence is not self._all[-1]):
                    return None
                self.evict(victim)
                if victim is sequence:
                    return None

    def grow(self, sequence: Sequence, n_rows: int) -> list[int]:
        """New blocks for so many rows in all, and for a draft behind them if there is room; without, none is made.

        Raises:
            OutOfBlocksError: there is no room for the rows.
        """
        if self._n_scratch and sequence.draft_nodes:
            try:
                return self.blocks.grow(sequence.seq, n_rows + self._n_scratch)
            except OutOfBlocksError:
                pass  # the rows may still fit
        return self.blocks.grow(sequence.seq, n_rows)

    def _victim(self) -> Sequence | None:
        """The least important, latest sequence that is not in flight."""
        return next((sequence for sequence in reversed(self._all) if not sequence.in_flight), None)
