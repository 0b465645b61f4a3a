"""The block allocator: which sequence owns which block of the KV cache. Knows block numbers, never tensors.

The scheduler allocates, the stages only follow: new block numbers travel with a step, so every stage of a pipeline
has the same tables. A table is a list of blocks in text order, paged as in vLLM; but blocks are handed out so that a
table stays *contiguous* whenever it can, because a contiguous table is read as a plain view, without a gather. One that
could not stay so is *scattered*, until a free run is long enough for all of it (``regroup``).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.errors import OutOfBlocksError
from engine.kv.cached_prefixes import CachedPrefixes
from engine.kv.free_runs import amid_run, longest_run, start_of_run


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
        self._scattered: set[int] = set()  # sequences
        self._longest: int | None = n_blocks  # no free run is longer; None: unknown, because blocks became free
        self.n_moved = 0  # blocks that sequences were given in place of others, so far

    @property
    def n_scattered(self) -> int:
        """Sequences whose table is not contiguous."""
        return len(self._scattered)

    @property
    def longest_free_run(self) -> int:
        """Blocks of the longest run of free ones."""
        return longest_run(self._free)

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
        missing = -(-n_tokens // self.block_size) - len(self._tables.get(seq, ()))
        if missing <= 0:  # nearly every step of every sequence
            return []
        if missing > self._n_free:
            raise OutOfBlocksError(
                f"sequence {seq} lacks {missing} blocks for {n_tokens} tokens, {self._n_free} are free"
            )
        table = self._tables.setdefault(seq, [])
        first = len(table)
        for n_wanted in range(missing, 0, -1):
            block = self._next_block(table, n_wanted)
            if table and block != table[-1] + 1:
                self._scattered.add(seq)
            self._take(block)
            table.append(block)
        self._n_free -= missing
        return table[first:]

    def regroup(self, seq: int) -> list[int] | None:
        """Give a scattered sequence one run: its longest piece stays and the others join it, or all of it moves.

        Returns its new table, or None when it is contiguous already or no free run is long enough. Blocks that it
        leaves are free at once: whatever is written to them must come after the copy. It is never moved to blocks that
        it leaves, so the copy may be made piece by piece.
        """
        if seq not in self._scattered:
            return None
        table = self._tables[seq]
        start = self._start_beside(table)
        if start is None:
            start = self._start_elsewhere(len(table))
        if start is None:
            return None
        made = list(range(start, start + len(table)))
        left = set(table).difference(made)
        for block in set(made).difference(table):
            self._take(block)
        self._free[list(left)] = True
        self._tables[seq] = made
        self._scattered.discard(seq)
        self._longest = None
        self.n_moved += len(left)
        return [*made]

    def release(self, seq: int) -> int:
        """Free all blocks of a sequence; returns how many. Unknown sequences own none."""
        table = self._tables.pop(seq, [])
        self._free[table] = True
        self._n_free += len(table)
        self._scattered.discard(seq)
        self._longest = None
        return len(table)

    def _take(self, block: int) -> None:
        self._free[block] = False
        if self._cached is not None:
            self._cached.take(block)

    def _next_block(self, table: list[int], n_wanted: int) -> int:
        """The block after the table's last if it is free, else the start of a new run of ``n_wanted`` if possible."""
        if table:
            after = table[-1] + 1
            if after < self.n_blocks and self._free[after]:
                return after
        n_wanted = min(n_wanted, longest_run(self._free))
        return start_of_run(self._free_for(n_wanted), n_wanted)

    def _free_for(self, n_wanted: int) -> NDArray[np.bool_]:
        """Free blocks with a run of ``n_wanted``, which there is; the oldest cached prefixes give way as needed."""
        free = self._free
        if self._cached is not None and len(self._cached):
            free = self._free & ~self._cached.mask
            while longest_run(free) < n_wanted:
                self._cached.drop_oldest()
                free = self._free & ~self._cached.mask
        return free

    def _start_beside(self, table: list[int]) -> int | None:
        """First block of the run in which the longest piece of a table stays where it is, if all the rest is free."""
        starts = np.asarray(table) - np.arange(len(table))  # of the run in which a block would stay where it is
        found, counts = np.unique(starts, return_counts=True)
        start = int(found[np.argmax(counts)])
        if not 0 <= start <= self.n_blocks - len(table):
            return None
        return start if self._free[start : start + len(table)][starts != start].all() else None

    def _start_elsewhere(self, n: int) -> int | None:
        """First block of a free run of ``n``, if there is one."""
        if self._longest is not None and n > self._longest:
            return None
        self._longest = longest_run(self._free)
        return amid_run(self._free_for(n), n) if n <= self._longest else None

    def check_integrity(self) -> None:
        """Assert that every block is free or owned exactly once; for tests and debugging."""
        owned = [block for table in self._tables.values() for block in table]
        runs = {seq for seq, table in self._tables.items() if table == list(range(table[0], table[0] + len(table)))}
        assert self._scattered == self._tables.keys() - runs, "a table is scattered, or not, without being known for it"
        assert len(owned) == len(set(owned)), "a block has two owners"
        assert not self._free[owned].any(), "an owned block is marked free"
        assert int(self._free.sum()) == self._n_free == self.n_blocks - len(owned), "blocks leaked"
        if self._cached is not None:
            self._cached.check_integrity()
            assert not self._cached.mask[owned].any(), "an owned block is in a cached prefix"
