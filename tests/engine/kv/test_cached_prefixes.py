"""Kept texts lie in free blocks only, go when a block is taken, and go in the order of their last use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.errors import OutOfBlocksError
from engine.kv.arena import BlockTable
from engine.kv.blocks import BlockAllocator
from engine.kv.cached_prefixes import CachedPrefix, CachedPrefixes, common_prefix
from engine.kv.prompt_top_ids import PromptTopIds

N_BLOCKS, BLOCK = 12, 4


class Cache(RuleBasedStateMachine):
    """An allocator that keeps, beside a model of what every block holds."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = CachedPrefixes(N_BLOCKS, BLOCK)
        self.blocks = BlockAllocator(N_BLOCKS, BLOCK, self.kept)
        self.tokens: dict[int, list[int]] = {}
        self.cells = [-1] * (N_BLOCKS * BLOCK)

    @rule(seq=st.integers(0, 4), start=st.integers(0, 2), n=st.integers(1, 20))
    def grow(self, seq: int, start: int, n: int) -> None:
        tokens = self.tokens.get(seq, [start])
        tokens = tokens + [100 * seq + len(tokens) + i for i in range(n)] if seq in self.tokens else [start] * n
        free = self.blocks.n_free
        try:
            added = self.blocks.grow(seq, len(tokens))
        except OutOfBlocksError:
            return
        assert self.blocks.n_free == free - len(added)
        self.tokens[seq] = tokens
        for slot, token in enumerate(tokens):
            self.cells[self._cell(self.blocks.table(seq), slot)] = token

    @rule(seq=st.integers(0, 4))
    def release(self, seq: int) -> None:
        if seq not in self.tokens:
            return
        tokens, table = self.tokens.pop(seq), self.blocks.table(seq)
        self.blocks.release(seq)
        self.kept.keep(CachedPrefix("", tokens, table[: self.blocks.blocks_for(len(tokens))], PromptTopIds()))

    @rule(seq=st.integers(0, 4))
    def regroup(self, seq: int) -> None:
        table = BlockTable(BLOCK)
        table.extend(self.blocks.table(seq))
        moved = self.blocks.regroup(seq)
        if moved is not None:
            for run in table.runs_to(moved):
                self.cells[run.target : run.target + run.n] = self.cells[run.source : run.source + run.n]

    @rule(start=st.integers(0, 2))
    def use(self, start: int) -> None:
        for text in self.kept.sharing_first_block("", [start] * BLOCK)[:1]:
            self.kept.use(text)

    @invariant()
    def what_is_offered_is_there(self) -> None:
        self.blocks.check_integrity()
        for start in range(3):
            assert self.kept.sharing_first_block("other", [start] * BLOCK) == []
            for text in self.kept.sharing_first_block("", [start] * BLOCK):
                cells = [self.cells[self._cell(text.blocks, slot)] for slot in range(len(text.tokens))]
                assert cells == text.tokens

    @invariant()
    def what_sequences_wrote_is_there(self) -> None:
        for seq, tokens in self.tokens.items():
            table = self.blocks.table(seq)
            assert [self.cells[self._cell(table, slot)] for slot in range(len(tokens))] == tokens

    @staticmethod
    def _cell(table: list[int], slot: int) -> int:
        return table[slot // BLOCK] * BLOCK + slot % BLOCK


TestCache = Cache.TestCase
TestCache.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


def keep(blocks: BlockAllocator, kept: CachedPrefixes, seq: int, n_blocks: int) -> None:
    blocks.grow(seq, n_blocks * BLOCK)
    table = blocks.table(seq)
    blocks.release(seq)
    kept.keep(CachedPrefix("", [seq] * (n_blocks * BLOCK), table, PromptTopIds()))


def test_the_least_recently_used_goes_first() -> None:
    kept = CachedPrefixes(N_BLOCKS, BLOCK)
    blocks = BlockAllocator(N_BLOCKS, BLOCK, kept)
    for seq in range(3):
        keep(blocks, kept, seq, 4)
    assert len(kept) == 3  # blocks that hold nothing were taken first
    kept.use(kept.sharing_first_block("", [0] * BLOCK)[0])
    blocks.grow(7, 4 * BLOCK)
    assert [len(kept.sharing_first_block("", [seq] * BLOCK)) for seq in range(3)] == [1, 0, 1]
    blocks.grow(8, 8 * BLOCK)
    assert len(kept) == 0
    blocks.check_integrity()


def test_a_text_is_cut_where_its_first_block_was_taken() -> None:
    kept = CachedPrefixes(N_BLOCKS, BLOCK)
    blocks = BlockAllocator(N_BLOCKS, BLOCK, kept)
    keep(blocks, kept, 1, 3)
    (text,) = kept.sharing_first_block("", [1] * BLOCK)
    kept.take(text.blocks[2])
    assert (len(text.blocks), len(text.tokens)) == (2, 2 * BLOCK)
    kept.take(text.blocks[0])
    assert len(kept) == 0
    kept.check_integrity()


def n_bytes(top_ids: PromptTopIds) -> int:
    """What is in memory for its rows, seen or not."""
    every = [*top_ids._ids, *top_ids._logprobs]
    return sum((array if array.base is None else array.base).nbytes for array in every)


@pytest.mark.parametrize("n_read", [8 * BLOCK, 5 * BLOCK + 1, BLOCK], ids=["all", "some", "one block"])
def test_a_text_that_was_cut_holds_what_was_read_back_behind_the_rest_only(n_read: int) -> None:
    kept, k = CachedPrefixes(N_BLOCKS, BLOCK), 32
    rows = np.arange(n_read * k, dtype=np.int32).reshape(n_read, k)
    scores = rows.astype(np.float32)
    top_ids = PromptTopIds()
    top_ids.append(rows[: 2 * BLOCK], scores[: 2 * BLOCK])
    for i in range(2 * BLOCK, n_read):  # step by step, each a view of a larger answer
        top_ids.append(np.tile(rows[i], (4, 1))[:1], np.tile(scores[i], (4, 1))[:1])
    text = CachedPrefix("", [0] * (8 * BLOCK), [*range(8)], top_ids)
    kept.keep(text)
    assert n_bytes(text.top_ids) == n_read * k * (4 + 4)
    for n_blocks in (6, 3, 1):
        kept.take(n_blocks)
        n = min(n_read, n_blocks * BLOCK)
        assert n_bytes(text.top_ids) == n * k * (4 + 4)
        ids, logprobs = text.top_ids.part(0, n)
        np.testing.assert_array_equal(ids, rows[:n])
        np.testing.assert_array_equal(logprobs, scores[:n])
    assert top_ids.n == n_read, "a sequence that still has it keeps it"


def test_a_sequence_that_grows_takes_the_block_behind_it() -> None:
    kept = CachedPrefixes(N_BLOCKS, BLOCK)
    blocks = BlockAllocator(N_BLOCKS, BLOCK, kept)
    blocks.grow(0, 4 * BLOCK)
    before = blocks.table(0)
    keep(blocks, kept, 1, N_BLOCKS - before[-1] - 1)
    assert len(kept) == 1
    assert blocks.grow(0, 5 * BLOCK) == [before[-1] + 1]
    assert len(kept) == 0
    blocks.check_integrity()


def test_common_beginnings_are_counted_to_the_token() -> None:
    text = list(range(1000))
    for n in (0, 1, 255, 256, 257, 511, 600):
        assert common_prefix(text, [*text[:n], -1, *text[n + 1 :]], 900) == n
        assert common_prefix(text, text[:n], 900) == n
    assert common_prefix(text, text, 900) == 900
