"""Blocks: never two owners, never lost, all or nothing, and contiguous whenever that is possible."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.errors import OutOfBlocksError
from engine.kv.blocks import BlockAllocator

N_BLOCKS, BLOCK = 12, 4


def is_run(table: list[int]) -> bool:
    return table == list(range(table[0], table[0] + len(table))) if table else True


class Allocator(RuleBasedStateMachine):
    """Any order of growing and releasing, against a plain model of who owns what."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockAllocator(N_BLOCKS, BLOCK)
        self.tables: dict[int, list[int]] = {}

    @rule(seq=st.integers(0, 4), n_tokens=st.integers(0, N_BLOCKS * BLOCK + 5))
    def grow(self, seq: int, n_tokens: int) -> None:
        before = self.tables.get(seq, [])
        missing = max(0, -(-n_tokens // BLOCK) - len(before))
        free = N_BLOCKS - sum(map(len, self.tables.values()))
        assert self.blocks.missing(seq, n_tokens) == missing
        if missing > free:
            with pytest.raises(OutOfBlocksError):
                self.blocks.grow(seq, n_tokens)
            assert self.blocks.table(seq) == before
            return
        added = self.blocks.grow(seq, n_tokens)
        assert len(added) == missing
        if added:
            self.tables[seq] = before + added

    @rule(seq=st.integers(0, 4))
    def release(self, seq: int) -> None:
        assert self.blocks.release(seq) == len(self.tables.pop(seq, []))

    @rule(seq=st.integers(0, 4))
    def a_copy_is_harmless(self, seq: int) -> None:
        self.blocks.table(seq).append(99)

    @invariant()
    def everybody_has_what_is_theirs(self) -> None:
        self.blocks.check_integrity()
        owned = [block for table in self.tables.values() for block in table]
        assert len(set(owned)) == len(owned)
        assert all(0 <= block < N_BLOCKS for block in owned)
        assert self.blocks.n_free == N_BLOCKS - len(owned)
        assert self.blocks.owners == set(self.tables)
        assert {seq: self.blocks.table(seq) for seq in self.tables} == self.tables


TestAllocator = Allocator.TestCase
TestAllocator.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@given(st.lists(st.integers(0, N_BLOCKS * BLOCK), min_size=1, max_size=8))
def test_a_sequence_alone_is_always_one_run(sizes: list[int]) -> None:
    blocks = BlockAllocator(N_BLOCKS, BLOCK)
    for n_tokens in sizes:
        blocks.grow(1, n_tokens)
        assert is_run(blocks.table(1))


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4 * BLOCK), st.booleans()), max_size=20), st.integers(1, 12)
)
def test_a_newcomer_is_one_run_if_any_free_run_is_long_enough(history: list[tuple[int, int, bool]], n: int) -> None:
    blocks = BlockAllocator(N_BLOCKS, BLOCK)
    for seq, n_tokens, leaves in history:
        if leaves:
            blocks.release(seq)
        elif blocks.missing(seq, n_tokens) <= blocks.n_free:
            blocks.grow(seq, n_tokens)
    taken = {block for owner in blocks.owners for block in blocks.table(owner)}
    longest = run = 0
    for block in range(N_BLOCKS):
        run = 0 if block in taken else run + 1
        longest = max(longest, run)
    if n <= blocks.n_free:
        blocks.grow(9, n * BLOCK)
        assert is_run(blocks.table(9)) or n > longest


def test_neighbours_leave_each_other_room_to_grow() -> None:
    blocks = BlockAllocator(64, BLOCK)
    for n_tokens in range(1, 16 * BLOCK, 3):
        for seq in range(4):
            blocks.grow(seq, n_tokens)
    assert all(is_run(blocks.table(seq)) for seq in range(4))
