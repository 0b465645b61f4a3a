"""Writes the arrays of a plan, compiled; see ``engine.cuda.plan.items`` and ``engine.cuda.plan.layout``.

``add_items`` runs twice: first on an empty array, where it only counts, then on one of the counted size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.compiled import compiled_in_place
from engine.cuda.plan.items import BLOCK, CHAIN, TREE, FlatWorks, Ints
from engine.cuda.plan.layout import ITEM

_N_CACHED, _N_ROWS, _N_RUN, _KIND, _N_BLOCKS, _N_PARENTS = range(6)  # columns of ``FlatWorks.table``
_DEPTHS, _OWNED, _PATH = range(3)  # rows of ``FlatWorks.scratch``
# For a literal number, which has a type of its own, Numba would compile every callee again.
_ZERO: Any = np.int64(0)
_ONE: Any = np.int64(1)
Cursors = NDArray[np.int64]  # [1 + n_windows]: where the next member or table goes, and the next item of every window


@compiled_in_place
def find_invalid(works: FlatWorks) -> int:
    """Return the index of the first work whose rows, parents and blocks contradict each other, or -1."""
    parents_at = 0
    for i in range(len(works.table)):
        n_cached, n_rows, n_run = works.table[i, _N_CACHED], works.table[i, _N_ROWS], works.table[i, _N_RUN]
        if n_cached < 0 or n_rows < 1 or n_run < 0 or n_run > n_rows:
            return i
        if n_cached + n_rows > works.table[i, _N_BLOCKS] * works.block_size:
            return i
        if works.table[i, _KIND] == TREE:
            if works.table[i, _N_PARENTS] != n_rows - 1:
                return i
            for node in range(n_rows - 1):
                if not -1 <= works.parents[parents_at + node] < node:
                    return i
            parents_at += n_rows - 1
    return -1


@compiled_in_place
def fill_rows(works: FlatWorks, rows: Ints, unused_slot: int) -> int:
    """Fill the arrays of rows; return the number of partials of the window with the most.

    Args:
        works: of the step.
        rows: ``[arrays of the layout, rows of the bucket]``: positions, slots, firsts of every window, tokens, sources,
            targets. The last three get the values of a step without tokens and moves.
        unused_slot: slot of rows that fill the bucket.
    """
    n_windows, row, most = len(works.windows), 0, 0
    parents_at = blocks_at = _ZERO
    for i in range(len(works.table)):
        n_cached, n_rows = works.table[i, _N_CACHED], works.table[i, _N_ROWS]
        _set_depths(works, i, parents_at)
        for own in range(works.table[i, _N_RUN], n_rows):
            rows[0, row] = n_cached + works.scratch[_DEPTHS, own]
            rows[1, row] = _slot(works, blocks_at, n_cached + own)
            row += 1
        blocks_at += works.table[i, _N_BLOCKS]
        parents_at += works.table[i, _N_PARENTS]
    for window in range(n_windows):
        n_partials = 0
        for i in range(row):
            rows[2 + window, i] = n_partials
            n_partials += rows[0, i] // works.split - _first_split(works, window, np.int64(rows[0, i])) + 1
        most = max(most, n_partials)
    rows[0, row:], rows[1, row:], rows[2 : 2 + n_windows, row:] = 0, unused_slot, -1
    rows[2 + n_windows], rows[3 + n_windows :] = 0, -1
    return most


@compiled_in_place
def add_items(works: FlatWorks, ints: Ints, cursors: Cursors) -> None:
    """Write members, tables and items of all works at the cursors, which advance; only count if ``ints`` is empty."""
    row = parents_at = blocks_at = _ZERO
    for i in range(len(works.table)):
        n_cached, n_rows, n_run = works.table[i, _N_CACHED], works.table[i, _N_ROWS], works.table[i, _N_RUN]
        kind, n_blocks = works.table[i, _KIND], works.table[i, _N_BLOCKS]
        table_at = cursors[0]
        for number in range(n_blocks):
            _put(ints, cursors, np.int64(works.blocks[blocks_at + number]))
        first_row = row - n_run
        _set_depths(works, i, parents_at)
        if kind == CHAIN:
            for tile in range(n_run, n_rows, works.tile):
                n = min(works.tile, n_rows - tile)
                members = cursors[0]
                for own in range(tile, tile + n):
                    _put(ints, cursors, first_row + own)
                _add_run(works, ints, cursors, members, n, n_cached + tile, table_at, _ZERO, works.block_size, _ZERO)
        elif kind == BLOCK:
            _add_shared(works, ints, cursors, i, first_row, table_at, n_cached + n_rows)
        else:
            # All rows of a tree see a split that is wholly committed text in the same way.
            _add_shared(works, ints, cursors, i, first_row, table_at, n_cached // works.split * works.split)
            _add_paths(works, ints, cursors, i, first_row, parents_at, blocks_at)
        row += n_rows - n_run
        parents_at += works.table[i, _N_PARENTS]
        blocks_at += n_blocks


@compiled_in_place
def _add_shared(
    works: FlatWorks, ints: Ints, cursors: Cursors, work: int, first_row: int, table_at: int, end: int
) -> None:
    """Add the splits of the positions below ``end``, all of which every row sees, except for its window."""
    n_rows = works.table[work, _N_ROWS]
    for tile in range(works.table[work, _N_RUN], n_rows if end else 0, works.tile):
        last, members, depth = min(tile + works.tile, n_rows), cursors[0], n_rows
        for own in range(tile, last):
            _put(ints, cursors, first_row + own)
            depth = min(depth, works.scratch[_DEPTHS, own])
        lowest = works.table[work, _N_CACHED] + depth
        for window in range(len(works.windows)):
            for split in range(_first_split(works, window, lowest), -(-end // works.split)):
                to = min((split + 1) * works.split, end)
                _put_item(ints, cursors, window, members, last - tile, table_at, _ZERO, works.block_size, split, to)


@compiled_in_place
def _add_paths(
    works: FlatWorks, ints: Ints, cursors: Cursors, work: int, first_row: int, parents_at: int, blocks_at: int
) -> None:
    """Add the later splits of each path from the root to a leaf, with a table of the slots of its own text.

    The members of a path are the rows that no earlier path has.
    """
    n_cached, n_rows, n_run = works.table[work, _N_CACHED], works.table[work, _N_ROWS], works.table[work, _N_RUN]
    owned, path, shared = works.scratch[_OWNED], works.scratch[_PATH], n_cached // works.split
    base = shared * works.split
    owned[:n_rows] = 2  # 2: a leaf; 0: in no path yet; 1: in a path
    for node in range(n_rows - 1):
        owned[works.parents[parents_at + node] + 1] = 0
    for leaf in range(n_rows):
        if owned[leaf] != 2:
            continue
        depth, row = works.scratch[_DEPTHS, leaf], leaf
        n, first = depth + 1, depth + 1
        while True:
            path[depth] = row
            if owned[row] != 1 and row >= n_run:
                first = depth
            owned[row] = 1
            if row == 0:
                break
            depth, row = depth - 1, works.parents[parents_at + row - 1] + 1
        if first == n:
            continue
        table_at = cursors[0]
        for position in range(base, n_cached):
            _put(ints, cursors, _slot(works, blocks_at, position))
        for own in path[:n]:
            _put(ints, cursors, _slot(works, blocks_at, n_cached + own))
        for tile in range(first, n, works.tile):
            members, last = cursors[0], min(tile + works.tile, n)
            for own in path[tile:last]:
                _put(ints, cursors, first_row + own)
            _add_run(works, ints, cursors, members, last - tile, n_cached + tile, table_at, base, _ONE, shared)


@compiled_in_place
def _add_run(
    works: FlatWorks,
    ints: Ints,
    cursors: Cursors,
    members: int,
    n: int,
    position: int,
    table_at: int,
    base: int,
    unit: int,
    from_split: int,
) -> None:
    """Add the splits of ``n`` rows at consecutive positions; each has the rows that see some of it as members."""
    for window in range(len(works.windows)):
        first = max(from_split, _first_split(works, window, position))
        for split in range(first, (position + n - 1) // works.split + 1):
            skipped, end = max(split * works.split - position, 0), min((split + 1) * works.split, position + n)
            _put_item(ints, cursors, window, members + skipped, n - skipped, table_at, base, unit, split, end)


@compiled_in_place
def _put_item(
    ints: Ints,
    cursors: Cursors,
    window: int,
    members: int,
    n: int,
    table_at: int,
    base: int,
    unit: int,
    split: int,
    end: int,
) -> None:
    at = cursors[1 + window]
    cursors[1 + window] += ITEM
    if len(ints):
        for column, number in enumerate((members, n, table_at, base, unit, split, end, 0)):
            ints[at + column] = number


@compiled_in_place
def _put(ints: Ints, cursors: Cursors, number: Any) -> None:
    if len(ints):
        ints[cursors[0]] = number
    cursors[0] += 1


@compiled_in_place
def _set_depths(works: FlatWorks, work: int, parents_at: int) -> None:
    """Set the last position that each row of a work sees, relative to that of its first row."""
    n_rows, kind, depths = works.table[work, _N_ROWS], works.table[work, _KIND], works.scratch[_DEPTHS]
    for row in range(n_rows):
        depths[row] = n_rows - 1 if kind == BLOCK else row
    if kind == TREE:
        for node in range(n_rows - 1):
            depths[node + 1] = depths[works.parents[parents_at + node] + 1] + 1


@compiled_in_place
def _slot(works: FlatWorks, blocks_at: int, own: int) -> int:
    """Return the arena slot of a slot of the sequence."""
    slot: int = works.blocks[blocks_at + own // works.block_size] * works.block_size + own % works.block_size
    return slot


@compiled_in_place
def _first_split(works: FlatWorks, window: int, position: Any) -> int:
    """Return the first split that a row at ``position`` sees under a window."""
    split: int = max(0, position - works.windows[window] + 1) // works.split
    return split
