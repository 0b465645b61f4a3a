"""The block allocator: which sequence owns which block of the KV cache. Knows block numbers, never tensors.

The scheduler allocates and frees, the stages only follow: new block numbers travel with a step, so every stage of a
pipeline has the same block tables. A table lists a sequence's blocks in text order, as in vLLM. The allocator keeps a
table *contiguous* where it can, because a contiguous table is read as a plain view, without a gather. Any other table
is *scattered*, until a free run is long enough for all of it (``defragment``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.errors import OutOfBlocksError
from engine.kv.cached_prefixes import CachedPrefixes

PLENTY = 0.5  # share of free blocks from which a new table leaves room for the table before it to grow

BlockMask = NDArray[np.bool_]


def block_bytes(n_layers: int, block_size: int, n_kv_heads: int, head_dim: int, item_bytes: int) -> int:
    """Return the bytes of one block over ``n_layers`` layers, whose keys and values have numbers of ``item_bytes``."""
    return n_layers * 2 * block_size * n_kv_heads * head_dim * item_bytes


class BlockAllocator:
    """A fixed number of equal blocks; each belongs to at most one sequence.

    Args:
        n_blocks: blocks in the cache.
        block_size: tokens per block.
        cached: prefixes that free blocks still hold; allocating such a block evicts them from it.
    """

    def __init__(self, n_blocks: int, block_size: int, cached: CachedPrefixes | None = None) -> None:
        self.n_blocks = n_blocks
        self.block_size = block_size
        self.n_free = n_blocks
        self.n_moved = 0  # blocks that sequences left for others, so far
        self._free = np.ones(n_blocks, dtype=np.bool_)
        self._cached = cached
        self._tables: dict[int, list[int]] = {}
        self._scattered: set[int] = set()  # sequences
        self._longest: int | None = n_blocks  # no free run is longer; None: unknown, because blocks became free

    @property
    def n_scattered(self) -> int:
        """Sequences whose table is not contiguous."""
        return len(self._scattered)

    @property
    def longest_free_run(self) -> int:
        """Blocks of the longest free run."""
        return longest_run(self._free)

    @property
    def owners(self) -> set[int]:
        """Sequences that own at least one block."""
        return set(self._tables)

    def table(self, seq: int) -> list[int]:
        """Return a copy of a sequence's blocks in text order."""
        return list(self._tables.get(seq, ()))

    def blocks_for(self, n_tokens: int) -> int:
        """Return how many blocks hold ``n_tokens``."""
        return -(-n_tokens // self.block_size)

    def n_missing(self, seq: int, n_tokens: int) -> int:
        """Return how many blocks a sequence lacks to hold ``n_tokens``."""
        return max(0, self.blocks_for(n_tokens) - len(self._tables.get(seq, ())))

    def allocate(self, seq: int, n_tokens: int) -> list[int]:
        """Allocate blocks until a sequence can hold ``n_tokens`` in all; return the new ones.

        Raises:
            OutOfBlocksError: too few are free; nothing was allocated then.
        """
        n_missing = -(-n_tokens // self.block_size) - len(self._tables.get(seq, ()))
        if n_missing <= 0:  # nearly every step of every sequence
            return []
        if n_missing > self.n_free:
            raise OutOfBlocksError(
                f"sequence {seq} lacks {n_missing} blocks for {n_tokens} tokens; {self.n_free} are free"
            )
        table = self._tables.setdefault(seq, [])
        first = len(table)
        for n_left in range(n_missing, 0, -1):
            block = self._next_block(table, n_left)
            if table and block != table[-1] + 1:
                self._scattered.add(seq)
            self._take(block)
            table.append(block)
        self.n_free -= n_missing
        return table[first:]

    def defragment(self, seq: int) -> list[int] | None:
        """Move a scattered sequence into one run: its longest piece stays and the others join it, or all of it moves.

        Return its new table, or None when it is contiguous already or no free run is long enough. Blocks that it
        leaves are free at once: whatever is written to them must come after the copy. It never moves to blocks that it
        leaves, so the copy may be made piece by piece.
        """
        if seq not in self._scattered:
            return None
        table = self._tables[seq]
        start = self._start_around(table)
        if start is None:
            start = self._start_elsewhere(len(table))
        if start is None:
            return None
        new_table = list(range(start, start + len(table)))
        freed = set(table).difference(new_table)
        for block in set(new_table).difference(table):
            self._take(block)
        self._free[list(freed)] = True
        self._tables[seq] = new_table
        self._scattered.discard(seq)
        self._longest = None
        self.n_moved += len(freed)
        return [*new_table]

    def free(self, seq: int) -> int:
        """Free all blocks of a sequence; return how many. An unknown sequence owns none."""
        table = self._tables.pop(seq, [])
        self._free[table] = True
        self.n_free += len(table)
        self._scattered.discard(seq)
        self._longest = None
        return len(table)

    def _take(self, block: int) -> None:
        self._free[block] = False
        if self._cached is not None:
            self._cached.evict_from(block)

    def _next_block(self, table: list[int], n_blocks: int) -> int:
        """Return the block after the table's last if it is free, else the start of a new run, if possible of
        ``n_blocks``."""
        if table:
            after = table[-1] + 1
            if after < self.n_blocks and self._free[after]:
                return after
        n_blocks = min(n_blocks, longest_run(self._free))
        return start_of_run(self._free_with_run(n_blocks), n_blocks)

    def _free_with_run(self, n_blocks: int) -> BlockMask:
        """Return free blocks with a run of ``n_blocks``, which must exist, and as many cached prefixes as possible left
        out; the oldest are evicted as needed."""
        free = self._free
        if self._cached is not None and len(self._cached):
            free = self._free & ~self._cached.mask
            while longest_run(free) < n_blocks:
                self._cached.evict_oldest()
                free = self._free & ~self._cached.mask
        return free

    def _start_around(self, table: list[int]) -> int | None:
        """Return the start of the run in which the longest piece of a table stays, if the rest of that run is free."""
        starts = np.asarray(table) - np.arange(len(table))  # of the run in which a block would stay where it is
        found, counts = np.unique(starts, return_counts=True)
        start = int(found[np.argmax(counts)])
        if not 0 <= start <= self.n_blocks - len(table):
            return None
        return start if self._free[start : start + len(table)][starts != start].all() else None

    def _start_elsewhere(self, n_blocks: int) -> int | None:
        """Return the start of a free run of ``n_blocks``, if there is one."""
        if self._longest is not None and n_blocks > self._longest:
            return None
        self._longest = longest_run(self._free)
        return middle_of_run(self._free_with_run(n_blocks), n_blocks) if n_blocks <= self._longest else None

    def check_integrity(self) -> None:
        """Assert that every block is free or has one owner; for tests and debugging."""
        owned = [block for table in self._tables.values() for block in table]
        runs = {seq for seq, table in self._tables.items() if table == list(range(table[0], table[0] + len(table)))}
        assert self._scattered == self._tables.keys() - runs, "the set of scattered tables is wrong"
        assert len(owned) == len(set(owned)), "a block has two owners"
        assert not self._free[owned].any(), "an owned block is marked free"
        assert int(self._free.sum()) == self.n_free == self.n_blocks - len(owned), "blocks leaked"
        if self._cached is not None:
            self._cached.check_integrity()
            assert not self._cached.mask[owned].any(), "an owned block is in a cached prefix"


def longest_run(free: BlockMask) -> int:
    """Return the blocks of the longest run; 0 when none is free."""
    starts, ends = _runs(free)
    return int((ends - starts).max(initial=0))


def start_of_run(free: BlockMask, n_blocks: int) -> int:
    """Return the first block for a new run of ``n_blocks``, at least 1 and no more than the longest run has.

    While half of the cache is free, it is the middle of the longest run, or as far before the middle as ``n_blocks``
    require: the owner of the blocks before the run can then grow, too. With less it is the start of the shortest run
    that is long enough, so that long runs last.
    """
    starts, ends = _runs(free)
    lengths = ends - starts
    if lengths.sum() >= PLENTY * len(free):
        longest = int(np.argmax(lengths))
        start, end = int(starts[longest]), int(ends[longest])
        return start if start == 0 else max(start, min((start + end) // 2, end - n_blocks))
    return int(starts[_shortest(lengths, n_blocks)])


def middle_of_run(free: BlockMask, n_blocks: int) -> int:
    """Return the first block of the place that a whole sequence of ``n_blocks``, at most the longest run's, moves to.

    It is the middle of the shortest run that is long enough. Directly after another sequence it would take the block
    that this one needs next, and so scatter it. Only the run at the beginning of the cache is filled from its start.
    """
    starts, ends = _runs(free)
    shortest = _shortest(ends - starts, n_blocks)
    start, end = int(starts[shortest]), int(ends[shortest])
    return (start + end - n_blocks) // 2 if start else 0


def _shortest(lengths: NDArray[np.intp], n_blocks: int) -> int:
    fitting = np.flatnonzero(lengths >= n_blocks)
    return int(fitting[np.argmin(lengths[fitting])])


def _runs(free: BlockMask) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the first block of every free run, and the block after its last."""
    edges = np.flatnonzero(np.diff(free, prepend=False, append=False))
    return edges[::2], edges[1::2]
