"""The running set: sequences that own KV blocks. Blocks are allocated, freed and preempted here.

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
    """Sequences by priority, then by arrival.

    Args:
        blocks: of the cache.
        prefixes: caches what ended sequences leave in their blocks.
        requeue: is called with every preempted sequence, which will be prefilled again.
        n_scratch: slots after a tree or a prompt in which the target's drafter drafts the next tree.
    """

    def __init__(
        self,
        blocks: BlockAllocator,
        prefixes: PrefixMatcher,
        requeue: Callable[[Sequence], None],
        n_scratch: int = 0,
    ) -> None:
        self.blocks = blocks
        self.prefixes = prefixes
        self._requeue = requeue
        self._n_scratch = n_scratch
        self._all: list[Sequence] = []
        self._ends: list[int] = []  # sequences that the target still holds and should drop

    def __len__(self) -> int:
        """Sequences that own blocks."""
        return len(self._all)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._all)

    @property
    def has_ends(self) -> bool:
        """Whether the target holds a sequence that has ended here."""
        return bool(self._ends)

    def pop_ends(self) -> list[int]:
        """Return the sequences that the target should drop, each of them once."""
        ends, self._ends = self._ends, []
        return ends

    def decoding(self) -> list[Sequence]:
        """Return the sequences whose text is in the cache, in flight or not."""
        return [sequence for sequence in self._all if sequence.state is not SequenceState.PREFILLING]

    @property
    def is_any_decoding(self) -> bool:
        """Whether any sequence decodes, or will once the target has answered what was sent."""
        return any(not (sequence.is_reading or sequence.cancelled) for sequence in self._all)

    def ready(self) -> list[Sequence]:
        """Return the sequences whose tree awaits a step."""
        return [sequence for sequence in self._all if sequence.state is SequenceState.READY and not sequence.in_flight]

    def reading(self, max_chunks: int) -> list[Sequence]:
        """Return the sequences whose next prompt chunk may be sent, with at most ``max_chunks`` in flight each."""
        prefilling = [sequence for sequence in self._all if sequence.state is SequenceState.PREFILLING]
        return [sequence for sequence in prefilling if sequence.is_reading and sequence.in_flight < max_chunks]

    def add(self, sequence: Sequence) -> None:
        """Add a sequence from the queue."""
        sequence.state, sequence.n_sent = SequenceState.PREFILLING, 0
        sequence.stats.count_entry()
        insort(self._all, sequence, key=lambda other: (other.request.priority, other.seq))

    def free(self, sequence: Sequence) -> None:
        """Remove a sequence, free its blocks and cache its text in them; the target drops it with the next step."""
        if sequence in self._all:
            self._all.remove(sequence)
        if sequence.is_on_target:
            self.prefixes.free_and_cache(sequence)
            self._ends.append(sequence.seq)
            sequence.is_on_target = False
        self.blocks.free(sequence.seq)  # without effect if they were freed to be cached

    def preempt(self, sequence: Sequence) -> None:
        """Free a live sequence and requeue it: its prompt and output are prefilled again later."""
        self.free(sequence)
        sequence.n_cached, sequence.keep, sequence.tree = 0, [], EMPTY_TREE
        sequence.state = SequenceState.WAITING
        sequence.stats.n_preempted += 1
        self._requeue(sequence)

    def forget_target(self) -> None:
        """Record that the target's state is lost: it holds no sequence and no prefix, and no step is in flight."""
        self._ends.clear()
        self.prefixes.evict_all()
        for sequence in self._all:
            sequence.is_on_target = False
            sequence.in_flight = 0

    def allocate(self, sequence: Sequence, n_rows: int) -> list[int]:
        """Allocate blocks for ``n_rows`` rows in all, and for the drafter's rows after them if possible; return them.

        Raises:
            OutOfBlocksError: there is no room for the rows.
        """
        if self._n_scratch and sequence.draft_nodes:
            try:
                return self.blocks.allocate(sequence.seq, n_rows + self._n_scratch)
            except OutOfBlocksError:
                pass  # the rows may still fit; without room for a draft, the drafter makes none
        return self.blocks.allocate(sequence.seq, n_rows)

    def allocate_or_preempt(self, sequence: Sequence) -> list[int] | None:
        """Allocate blocks for a tree; without room, drop the tree, then preempt the least important sequence.

        Of equal priorities the latest is preempted, and never one that goes before ``sequence``. Return None if all
        candidates have a step in flight, or if ``sequence`` itself was preempted; the caller retries on the next step.
        """
        while True:
            try:
                return self.allocate(sequence, sequence.n_cached + 1 + len(sequence.tree.tokens))
            except OutOfBlocksError:
                if len(sequence.tree):
                    sequence.tree = EMPTY_TREE
                    continue
                idle = (other for other in reversed(self._all) if not other.in_flight)
                victim = next(idle, None)
                if victim is None or (victim is sequence and sequence is not self._all[-1]):
                    return None
                self.preempt(victim)
                if victim is sequence:
                    return None
