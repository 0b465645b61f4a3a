"""Rows of the arena: where a slot lies, and how accepted rows move down."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.arena import BlockTable, KVArena, Run
from engine.stage.packing import compaction
from engine.step import Work

BLOCK = 4
N_BLOCKS = 6
CPU = torch.device("cpu")


def numbered() -> KVArena:
    """An arena of two layers in which every row holds its own number, values negated."""
    arena = KVArena(2, N_BLOCKS, BLOCK, 3, 2, torch.float32, CPU)
    for layer in range(2):
        own = arena.layer(layer)
        own.keys.copy_(torch.arange(arena.n_rows)[:, None, None] + 100 * layer)
        own.values.copy_(-own.keys)
    return arena


def move(arena: KVArena, source: list[int], target: list[int]) -> None:
    arena.move(torch.tensor(source, dtype=torch.int64), torch.tensor(target, dtype=torch.int64))


def contents(arena: KVArena, layer: int) -> list[int]:
    """The number in every row; checks that heads, keys and values went together."""
    own = arena.layer(layer)
    assert torch.equal(own.keys, -own.values)
    assert torch.equal(own.keys, own.keys[:, :1, :1].expand_as(own.keys))
    return [int(row) - 100 * layer for row in own.keys[:, 0, 0]]


@given(st.lists(st.integers(0, 23), unique=True, max_size=12), st.data())
def test_rows_move_as_if_all_were_read_before_any_is_written(target: list[int], data: st.DataObject) -> None:
    source = [data.draw(st.integers(0, 23)) for _ in target]
    arena = numbered()
    move(arena, source, target)
    wanted = list(range(24))
    for to, row in zip(target, source, strict=True):
        wanted[to] = row
    assert contents(arena, 0) == contents(arena, 1) == wanted


@given(st.permutations(range(24)), st.integers(0, 24), st.booleans(), st.data())
def test_a_copy_in_pieces_is_the_same(rows: list[int], n: int, is_apart: bool, data: st.DataObject) -> None:
    target = rows[:n]
    is_apart &= n < 24
    source = [data.draw(st.sampled_from(rows[n:] if is_apart else rows)) for _ in target]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.kv.arena.PIECE", 3)
        copied, moved = numbered(), numbered()
        copied.copy(torch.tensor(source, dtype=torch.int64), torch.tensor(target, dtype=torch.int64), is_apart)
        move(moved, source, target)
    assert contents(copied, 1) == contents(moved, 1)


@given(st.permutations(range(N_BLOCKS)), st.integers(1, N_BLOCKS), st.data())
def test_a_table_that_moves_keeps_what_it_holds(blocks: list[int], n: int, data: st.DataObject) -> None:
    free = [*blocks[n:]]
    moved = [free.pop() if free and data.draw(st.booleans()) else block for block in blocks[:n]]
    arena, table = numbered(), BlockTable(BLOCK)
    table.extend(blocks[: n - 1])  # the last is new: it holds nothing yet
    held = [table.row(slot) for slot in range((n - 1) * BLOCK)]
    runs = table.runs_to(moved)
    arena.move_runs(runs)
    table.replace(moved)
    for layer in range(2):
        assert [contents(arena, layer)[table.row(slot)] for slot in range((n - 1) * BLOCK)] == held
    assert table.blocks == moved
    assert sum(run.n for run in runs) == BLOCK * sum(old != new for old, new in zip(blocks, moved[:-1], strict=False))


def test_neighbours_that_move_together_are_one_run() -> None:
    table = BlockTable(BLOCK)
    table.extend([0, 1, 4])
    assert table.runs_to([2, 3, 4]) == [Run(0, 2 * BLOCK, 2 * BLOCK)]


def test_views_for_reading_and_writing_share_memory() -> None:
    arena = numbered()
    layer = arena.layer(1)
    assert layer.read_keys.shape == (1, 3, 24, 2)
    layer.keys[5] = 7.0
    assert torch.equal(layer.read_keys[0, :, 5], torch.full((3, 2), 7.0))


@given(st.permutations(range(N_BLOCKS)), st.integers(1, N_BLOCKS), st.data())
def test_a_table_finds_every_slot_contiguous_or_not(blocks: list[int], n: int, data: st.DataObject) -> None:
    table = BlockTable(BLOCK)
    cut = data.draw(st.integers(0, n))
    table.extend(blocks[:cut])
    table.extend(blocks[cut:n])
    rows = [block * BLOCK + offset for block in blocks[:n] for offset in range(BLOCK)]
    assert len(table.blocks) * table.block_size == len(rows)
    assert [table.row(slot) for slot in range(len(rows))] == rows
    first = data.draw(st.integers(0, len(rows)))
    last = data.draw(st.integers(first, len(rows)))
    assert table.rows(first, last, CPU).tolist() == table.row_numbers(first, last).tolist() == rows[first:last]
    assert (table.base == rows[0]) if rows == list(range(rows[0], rows[0] + len(rows))) else table.base is None


@given(st.permutations(range(N_BLOCKS)), st.integers(0, 8), st.data())
def test_an_accepted_path_lies_behind_the_text_afterwards(blocks: list[int], n_text: int, data: st.DataObject) -> None:
    n_rows = data.draw(st.integers(1, 24 - n_text))  # the root and its tree
    keep = sorted(data.draw(st.sets(st.integers(1, n_rows - 1)))) if n_rows > 1 else []
    table = BlockTable(BLOCK)
    table.extend(blocks)
    arena = numbered()
    work = Work(3, n_text + 1 + len(keep), [5], keep=keep)
    move(arena, *compaction([work], {3: table}))
    held = [contents(arena, 1)[table.row(slot)] for slot in range(n_text + 1 + len(keep))]
    assert held == [table.row(slot) for slot in [*range(n_text + 1), *(n_text + row for row in keep)]]
