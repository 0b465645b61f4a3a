"""Blocks: never two owners, never lost, all or nothing, and contiguous whenever that is possible."""

from __future__ import annotations

from random import Random

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
    def regroup(self, seq: int) -> None:
        before = self.tables.get(seq, [])
        free = set(range(N_BLOCKS)).difference(*self.tables.values())
        n, moved = len(before), self.blocks.regroup(seq)
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
        assert self.blocks.n_scattered == sum(not is_run(table) for table in self.tables.values())
        taken = "".join("x" if block in owned else "." for block in range(N_BLOCKS))
        assert self.blocks.longest_free_run == max(map(len, taken.split("x")))


TestAllocator = Allocator.TestCase
TestAllocator.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


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


def test_a_piece_comes_home_when_the_block_between_is_free_again() -> None:
    blocks = BlockAllocator(4, BLOCK)
    for seq, n_blocks in ((1, 2), (3, 1), (2, 1)):
        blocks.grow(seq, n_blocks * BLOCK)
    (between,) = blocks.table(2)
    blocks.release(3)
    blocks.grow(1, 3 * BLOCK)
    table = blocks.table(1)
    assert not is_run(table)
    assert blocks.regroup(1) is None
    blocks.release(2)
    assert blocks.regroup(1) == [*table[:2], between]
    assert blocks.n_moved == 1
    assert blocks.regroup(1) is None


def test_while_there_is_little_room_the_shortest_run_that_fits_is_taken() -> None:
    blocks = BlockAllocator(32, BLOCK)
    for seq in range(32):
        blocks.grow(seq, BLOCK)
    owner = {blocks.table(seq)[0]: seq for seq in range(32)}
    for block in (2, 3, 4, 5, 6, 10, 11, 12, 20, 21):
        blocks.release(owner[block])
    blocks.grow(40, 3 * BLOCK)
    blocks.grow(41, 2 * BLOCK)
    blocks.grow(42, 5 * BLOCK)
    assert [blocks.table(seq) for seq in (40, 41, 42)] == [[10, 11, 12], [20, 21], [2, 3, 4, 5, 6]]


def test_a_sequence_moves_to_the_middle_of_a_run_so_that_its_neighbours_can_grow() -> None:
    blocks = BlockAllocator(32, BLOCK)
    for seq in range(32):
        blocks.grow(seq, BLOCK)
    owner = {blocks.table(seq)[0]: seq for seq in range(32)}
    for block in (2, 20, 21, 22, 23, 24, 25):
        blocks.release(owner[block])
    blocks.grow(owner[1], 3 * BLOCK)
    assert not is_run(blocks.table(owner[1]))
    blocks.release(owner[30])
    blocks.release(owner[31])
    moved = blocks.regroup(owner[1])
    assert moved == [22, 23, 24]
    assert len(blocks.grow(owner[19], 3 * BLOCK)) == 2
    assert is_run(blocks.table(owner[19]))


def test_long_sequences_that_grow_beside_each_other_are_rarely_moved() -> None:
    """A cache of which two thirds are in use, by eight texts of 1,000 to 4,000 tokens that get 200 to 400 more."""
    rng = Random(0)
    blocks, ends, lengths = BlockAllocator(2000, 16), dict[int, int](), dict[int, int]()
    n_grown = n_moves = n_begun = 0
    while n_begun < 80:
        while len(ends) < 8:
            lengths[n_begun] = rng.randrange(1000, 4000)
            ends[n_begun] = lengths[n_begun] + rng.randrange(200, 400)
            blocks.grow(n_begun, lengths[n_begun])
            n_begun += 1
        for seq in list(ends):
            lengths[seq] += 1
            n_grown += len(blocks.grow(seq, lengths[seq]))
            n_moves += blocks.regroup(seq) is not None
            if lengths[seq] == ends[seq]:
                del ends[seq]
                blocks.release(seq)
    assert n_moves < 2 * n_begun  # 4 a sequence where they move to the start of a run
