"""The block allocator: which sequence owns which block of the KV cache. Knows block numbers, never tensors.

The scheduler allocates, the stages only follow: new block numbers travel with a step, so every stage of a pipeline
has the same tables. A table is a list of blocks in text order, paged as in vLLM; but blocks are handed out so that a
table stays *contiguous* whenever it can, because a contiguous table is read as a plain view, without a gather.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.errors import OutOfBlocksError
from engine.kv.cached_prefixes import CachedPrefixes


class BlockAllocator:
    """Fixed number of equal blocks; each belongs to at most one sequence.

    Args:
        n_blocks: blocks in the cache.
        block_size: tokens per block.
        cached: prefixes that free blocks still hold; the allocator reports which blocks it takes.
    """

    def __init__(self, n_blocks: int, block_size: int, cached: CachedPrefixes | None = None) -> None:
        self.n_blocks = n_blocks
        self.block_size = block_size
        self._free = np.ones(n_blocks, dtype=np.bool_)
        self._n_free = n_blocks
        self._cached = cached
        self._tables: dict[int, list[int]] = {}

    @property
    def n_free(self) -> int:
        """Free blocks."""
        return self._n_free

    @property
    def owners(self) -> set[int]:
        """Sequences that own at least one block."""
        return set(self._tables)

    def table(self, seq: int) -> list[int]:
        """Blocks of a sequence in text order (a copy)."""
        return list(self._tables.get(seq, ()))

    def blocks_for(self, n_tokens: int) -> int:
        """How many blocks hold ``n_tokens``."""
        return -(-n_tokens // self.block_size)

    def missing(self, seq: int, n_tokens: int) -> int:
        """How many blocks ``seq`` still lacks to hold ``n_tokens``."""
        return max(0, self.blocks_for(n_tokens) - len(self._tables.get(seq, ())))

    def grow(self, seq: int, n_tokens: int) -> list[int]:
        """Make room for ``n_tokens`` in all; returns the blocks that were added.

        Raises:
            OutOfBlocksError: too few are free; nothing was allocated then.
        """
        missing = self.missing(seq, n_tokens)
        if missing == 0:
            return []
        if missing > self._n_free:
            raise OutOfBlocksError(
                f"sequence {seq} lacks {missing} blocks for {n_tokens} tokens, {self._n_free} are free"
            )
        table = self._tables.setdefault(seq, [])
        added = []
        for n_wanted in range(missing, 0, -1):
            block = self._next_block(table, n_wanted)
            self._free[block] = False
            if self._cached is not None:
                self._cached.take(block)
            table.append(block)
            added.append(block)
        self._n_free -= missing
        return added

    def release(self, seq: int) -> int:
        """Free all blocks of a sequence; returns how many. Unknown sequences own none."""
        table = self._tables.pop(seq, [])
        self._free[table] = True
        self._n_free += len(table)
        return len(table)

    def _next_block(self, table: list[int], n_wanted: int) -> int:
        """The block after the table's last if it is free, else the start of a new run of ``n_wanted`` if possible."""
        if table:
            after = table[-1] + 1
            if after < self.n_blocks and self._free[after]:
                return after
        return self._roomiest_start(n_wanted)

    def _roomiest_start(self, n_wanted: int) -> int:
        """Middle of the longest free run, or so far before it that ``n_wanted`` blocks follow.

        The owner of the blocks before the run can then go on growing, too.
        """
        start, end = _longest_run(self._free)
        if self._cached is not None and len(self._cached):
            wanted = min(n_wanted, end - start)
            start, end = _longest_run(self._free & ~self._cached.mask)
            while end - start < wanted:
                self._cached.drop_oldest()
                start, end = _longest_run(self._free & ~self._cached.mask)
        return start if start == 0 else max(start, min((start + end) // 2, end - n_wanted))

    def check_integrity(self) -> None:
        """Assert that every block is free or owned exactly once; for tests and debugging."""
        owned = [block for table in self._tables.values() for block in table]
        assert len(owned) == len(set(owned)), "a block has two owners"
        assert not self._free[owned].any(), "an owned block is marked free"
        assert int(self._free.sum()) == self._n_free == self.n_blocks - len(owned), "blocks leaked"
        if self._cached is not None:
            self._cached.check_integrity()
            assert not self._cached.mask[owned].any(), "an owned block is in a cached prefix"


def _longest_run(free: NDArray[np.bool_]) -> tuple[int, int]:
    """First block of the longest run, and the one behind it; (0, 0) when there is none."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], free, [False])).astype(np.int8)))
    if not len(edges):
        return 0, 0
    starts, ends = edges[::2], edges[1::2]
    longest = int(np.argmax(ends - starts))
    return int(starts[longest]), int(ends[longest])
