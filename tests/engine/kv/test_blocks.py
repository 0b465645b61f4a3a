"""Blocks: never two owners, never lost, contiguous if possible; free ones hold cached prefixes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.errors import OutOfBlocksError
from engine.kv.arena import BlockTable
from engine.kv.blocks import BlockAllocator
from engine.kv.cached_prefixes import CachedPrefix, CachedPrefixes, common_prefix
from engine.kv.prompt_top_ids import PromptTopIds

N_BLOCKS, BLOCK = 12, 4


def is_run(table: list[int]) -> bool:
    return table == list(range(table[0], table[0] + len(table))) if table else True


class Allocator(RuleBasedStateMachine):
    """Any order of allocating and freeing, against a plain model of which sequence owns which block."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockAllocator(N_BLOCKS, BLOCK)
        self.tables: dict[int, list[int]] = {}

    @rule(seq=st.integers(0, 4), n_tokens=st.integers(0, N_BLOCKS * BLOCK + 5))
    def allocate(self, seq: int, n_tokens: int) -> None:
        before = self.tables.get(seq, [])
        missing = max(0, -(-n_tokens // BLOCK) - len(before))
        free = N_BLOCKS - sum(map(len, self.tables.values()))
        assert self.blocks.n_missing(seq, n_tokens) == missing
        if missing > free:
            with pytest.raises(OutOfBlocksError):
                self.blocks.allocate(seq, n_tokens)
            assert self.blocks.table(seq) == before
            return
        added = self.blocks.allocate(seq, n_tokens)
        assert len(added) == missing
        if added:
            self.tables[seq] = before + added

    @rule(seq=st.integers(0, 4))
    def free(self, seq: int) -> None:
        assert self.blocks.free(seq) == len(self.tables.pop(seq, []))

    @rule(seq=st.integers(0, 4))
    def defragment(self, seq: int) -> None:
        before = self.tables.get(seq, [])
        free = set(range(N_BLOCKS)).difference(*self.tables.values())
        n, moved = len(before), self.blocks.defragment(seq)
        places = [range(start, start + n) for start in range(N_BLOCKS - n + 1)]
        if moved is None:
            assert is_run(before) or not any(free.issuperset(place) for place in places)
            return
        assert not is_run(before)
        assert is_run(moved)
        assert len(moved) == n
        for old, new in zip(before, moved, strict=True):
            assert new in free or new == old  # so no block is written that is still to be read
        self.tables[seq] = moved

    @rule(seq=st.integers(0, 4))
    def change_a_copy(self, seq: int) -> None:
        self.blocks.table(seq).append(99)

    @invariant()
    def every_block_has_at_most_one_owner(self) -> None:
        self.blocks.check_integrity()
        owned = [block for table in self.tables.values() for block in table]
        assert len(set(owned)) == len(owned)
        assert all(0 <= block < N_BLOCKS for block in owned)
        assert self.blocks.n_free == N_BLOCKS - len(owned)
        assert self.blocks.owners == set(self.tables)
        assert {seq: self.blocks.table(seq) for seq in self.tables} == self.tables
        assert self.blocks.n_scattered == sum(not is_run(table) for table in self.tables.values())
        taken = "".join("x" if block in owned else "." for block in range(N_BLOCKS))
        assert self.blocks.longest_free_run == max(map(len, taken.split("x")))


TestAllocator = Allocator.TestCase
TestAllocator.settings = settings(stateful_step_count=25)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4 * BLOCK), st.booleans()), max_size=20), st.integers(1, 12)
)
def test_a_new_sequence_is_contiguous_if_a_free_run_is_long_enough(
    history: list[tuple[int, int, bool]], n: int
) -> None:
    blocks = BlockAllocator(N_BLOCKS, BLOCK)
    for seq, n_tokens, ends in history:
        if ends:
            blocks.free(seq)
        elif blocks.n_missing(seq, n_tokens) <= blocks.n_free:
            blocks.allocate(seq, n_tokens)
    longest = blocks.longest_free_run
    if n <= blocks.n_free:
        blocks.allocate(9, n * BLOCK)
        assert is_run(blocks.table(9)) or n > longest


def test_sequences_that_grow_together_stay_contiguous() -> None:
    blocks = BlockAllocator(64, BLOCK)
    for n_tokens in range(1, 16 * BLOCK, 3):
        for seq in range(4):
            blocks.allocate(seq, n_tokens)
    assert all(is_run(blocks.table(seq)) for seq in range(4))


def test_moves_keep_most_sequences_contiguous_in_a_cache_that_is_nearly_full() -> None:
    def share_scattered(with_moves: bool) -> float:
        chance, blocks = random.Random(0), BlockAllocator(1024, 64)
        lengths: dict[int, tuple[int, int]] = {}  # sequence -> its tokens now and at its end
        n_arrived = n_scattered = n_decoded = 0
        for step in range(600):
            while blocks.n_free > 0.15 * blocks.n_blocks:
                n = chance.randrange(200, 3000)
                lengths[n_arrived] = n, n + int(min(2048, chance.lognormvariate(5.5, 0.8)))
                blocks.allocate(n_arrived, n)
                n_arrived += 1
            for seq, (n, end) in [*lengths.items()]:
                if n == end:
                    del lengths[seq]
                    blocks.free(seq)
                    continue
                lengths[seq] = n + 1, end
                blocks.allocate(seq, n + 1)
                if with_moves:
                    blocks.defragment(seq)
                if step > 200:
                    n_decoded += 1
                    n_scattered += not is_run(blocks.table(seq))
        return n_scattered / n_decoded

    assert share_scattered(with_moves=True) < 0.3
    assert share_scattered(with_moves=False) > 0.6


class Cache(RuleBasedStateMachine):
    """An allocator with cached prefixes, next to a model of what every block holds."""

    def __init__(self) -> None:
        super().__init__()
        self.cached = CachedPrefixes(N_BLOCKS, BLOCK)
        self.blocks = BlockAllocator(N_BLOCKS, BLOCK, self.cached)
        self.tokens: dict[int, list[int]] = {}
        self.cells = [-1] * (N_BLOCKS * BLOCK)

    @rule(seq=st.integers(0, 4), start=st.integers(0, 2), n=st.integers(1, 20))
    def allocate(self, seq: int, start: int, n: int) -> None:
        tokens = self.tokens.get(seq, [start])
        tokens = tokens + [100 * seq + len(tokens) + i for i in range(n)] if seq in self.tokens else [start] * n
        free = self.blocks.n_free
        try:
            added = self.blocks.allocate(seq, len(tokens))
        except OutOfBlocksError:
            return
        assert self.blocks.n_free == free - len(added)
        self.tokens[seq] = tokens
        for slot, token in enumerate(tokens):
            self.cells[self._cell(self.blocks.table(seq), slot)] = token

    @rule(seq=st.integers(0, 4))
    def free(self, seq: int) -> None:
        if seq not in self.tokens:
            return
        tokens, table = self.tokens.pop(seq), self.blocks.table(seq)
        self.blocks.free(seq)
        self.cached.add(CachedPrefix("", tokens, table[: self.blocks.blocks_for(len(tokens))], PromptTopIds()))

    @rule(seq=st.integers(0, 4))
    def defragment(self, seq: int) -> None:
        table = BlockTable(BLOCK)
        table.extend(self.blocks.table(seq))
        moved = self.blocks.defragment(seq)
        if moved is not None:
            for run in table.runs_to(moved):
                self.cells[run.target : run.target + run.n] = self.cells[run.source : run.source + run.n]

    @rule(start=st.integers(0, 2))
    def mark_used(self, start: int) -> None:
        for text in self.cached.sharing_first_block("", [start] * BLOCK)[:1]:
            self.cached.mark_used(text)

    @invariant()
    def cached_prefixes_are_intact(self) -> None:
        self.blocks.check_integrity()
        for start in range(3):
            assert self.cached.sharing_first_block("other", [start] * BLOCK) == []
            for text in self.cached.sharing_first_block("", [start] * BLOCK):
                cells = [self.cells[self._cell(text.blocks, slot)] for slot in range(len(text.tokens))]
                assert cells == text.tokens

    @invariant()
    def running_sequences_are_intact(self) -> None:
        for seq, tokens in self.tokens.items():
            table = self.blocks.table(seq)
            assert [self.cells[self._cell(table, slot)] for slot in range(len(tokens))] == tokens

    @staticmethod
    def _cell(table: list[int], slot: int) -> int:
        return table[slot // BLOCK] * BLOCK + slot % BLOCK


TestCache = Cache.TestCase
TestCache.settings = settings(stateful_step_count=40)


def cache(blocks: BlockAllocator, cached: CachedPrefixes, seq: int, n_blocks: int) -> None:
    blocks.allocate(seq, n_blocks * BLOCK)
    table = blocks.table(seq)
    blocks.free(seq)
    cached.add(CachedPrefix("", [seq] * (n_blocks * BLOCK), table, PromptTopIds()))


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    cached = CachedPrefixes(N_BLOCKS, BLOCK)
    blocks = BlockAllocator(N_BLOCKS, BLOCK, cached)
    for seq in range(3):
        cache(blocks, cached, seq, 4)
    assert len(cached) == 3  # blocks without a prefix were allocated first
    cached.mark_used(cached.sharing_first_block("", [0] * BLOCK)[0])
    blocks.allocate(7, 4 * BLOCK)
    assert [len(cached.sharing_first_block("", [seq] * BLOCK)) for seq in range(3)] == [1, 0, 1]
    blocks.allocate(8, 8 * BLOCK)
    assert len(cached) == 0
    blocks.check_integrity()


def test_a_prefix_and_its_top_ids_end_before_the_first_allocated_block() -> None:
    cached, rows = CachedPrefixes(N_BLOCKS, BLOCK), np.arange(5 * BLOCK + 1, dtype=np.int32)[:, None]
    top_ids = PromptTopIds()
    for first, last in ((0, 8), (8, 9), (9, len(rows))):
        top_ids.append(rows[first:last], rows[first:last].astype(np.float32))
    text = CachedPrefix("", [0] * (8 * BLOCK), [*range(8)], top_ids)
    cached.add(text)
    for n_blocks in (6, 3, 1):
        cached.evict_from(n_blocks)
        n = min(len(rows), n_blocks * BLOCK)
        assert (len(text.blocks), len(text.tokens), text.top_ids.n) == (n_blocks, n_blocks * BLOCK, n)
        for part in text.top_ids.part(0, n):
            np.testing.assert_array_equal(part, rows[:n])
    assert top_ids.n == len(rows), "a sequence that still has the rows keeps them"
    cached.evict_from(0)
    assert len(cached) == 0
    cached.check_integrity()


def test_common_beginnings_are_counted_to_the_token() -> None:
    text = list(range(1000))
    for n in (0, 1, 255, 256, 257, 511, 600):
        assert common_prefix(text, [*text[:n], -1, *text[n + 1 :]], 900) == n
        assert common_prefix(text, text[:n], 900) == n
    assert common_prefix(text, text, 900) == 900
