"""Rows of the arena: where a slot lies, and how accepted rows move down."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.kv.arena import BlockTable, KVArena
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


def contents(arena: KVArena, layer: int = 1) -> list[int]:
    """The number in every row; checks that all heads, keys and values moved together."""
    own = arena.layer(layer)
    assert torch.equal(own.keys, -own.values)
    assert torch.equal(own.keys, own.keys[:, :1, :1].expand_as(own.keys))
    return [int(row) - 100 * layer for row in own.keys[:, 0, 0]]


@given(st.permutations(range(24)), st.integers(0, 24), st.booleans(), st.data())
def test_rows_move_as_if_all_were_read_before_any_is_written(
    rows: list[int], n: int, is_apart: bool, data: st.DataObject
) -> None:
    """Also in pieces, and where no row is both source and target."""
    target = rows[:n]
    is_apart &= n < 24
    source = [data.draw(st.sampled_from(rows[n:] if is_apart else rows)) for _ in target]
    expected = list(range(24))
    for to, row in zip(target, source, strict=True):
        expected[to] = row
    moved, copied = numbered(), numbered()
    moved.move(torch.tensor(source, dtype=torch.int64), torch.tensor(target, dtype=torch.int64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.kv.arena.PIECE", 3)
        copied.copy(torch.tensor(source, dtype=torch.int64), torch.tensor(target, dtype=torch.int64), is_apart)
    assert contents(moved, 0) == contents(moved, 1) == contents(copied) == expected


@given(st.permutations(range(N_BLOCKS)), st.integers(1, N_BLOCKS), st.data())
def test_a_table_that_moves_keeps_its_contents(blocks: list[int], n: int, data: st.DataObject) -> None:
    free = [*blocks[n:]]
    moved = [free.pop() if free and data.draw(st.booleans()) else block for block in blocks[:n]]
    arena, table = numbered(), BlockTable(BLOCK)
    table.extend(blocks[: n - 1])  # the last block is new: it holds nothing yet
    assert table.block_array.tolist() == blocks[: n - 1]
    held = [table.row(slot) for slot in range((n - 1) * BLOCK)]
    runs = table.runs_to(moved)
    arena.move_runs(runs)
    table.replace(moved)
    for layer in range(2):
        assert [contents(arena, layer)[table.row(slot)] for slot in range((n - 1) * BLOCK)] == held
    assert table.blocks == moved == table.block_array.tolist()
    assert sum(run.n for run in runs) == BLOCK * sum(old != new for old, new in zip(blocks, moved[:-1], strict=False))


@given(st.permutations(range(N_BLOCKS)), st.integers(0, 8), st.data())
def test_an_accepted_path_directly_follows_the_text(blocks: list[int], n_text: int, data: st.DataObject) -> None:
    n_rows = data.draw(st.integers(1, 24 - n_text))  # the root and its tree
    keep = sorted(data.draw(st.sets(st.integers(1, n_rows - 1)))) if n_rows > 1 else []
    table = BlockTable(BLOCK)
    table.extend(blocks)
    arena = numbered()
    work = Work(3, n_text + 1 + len(keep), [5], keep=keep)
    source, target = compaction([work], {3: table})
    arena.move(torch.tensor(source, dtype=torch.int64), torch.tensor(target, dtype=torch.int64))
    held = [contents(arena)[table.row(slot)] for slot in range(n_text + 1 + len(keep))]
    assert held == [table.row(slot) for slot in [*range(n_text + 1), *(n_text + row for row in keep)]]
