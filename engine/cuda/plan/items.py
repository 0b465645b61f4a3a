"""Items of attention: which rows look at which split of which keys.

An item is ``[members_at, n_members, table_at, base, unit, split, end, 0]``, the first and the third being places in
the plan. Its members are rows; it looks at the keys of positions ``split * SPLIT`` to ``end - 1``. The key of position
``p`` is at slot ``table[(p - base) // unit] * unit + (p - base) % unit``: a table holds blocks of ``unit`` slots from
the position ``base`` on, and slots themselves where ``unit`` is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.cuda.plan.layout import ITEM, Layout
from engine.cuda.plan.paths import paths_of

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PathWork:
    """One sequence's rows in a step: a chain of rows, or the root and its tree.

    Args:
        n_cached: committed tokens before the first row.
        n_rows: rows.
        parents: of every node behind the root, ``[n_rows - 1]``; None: a chain.
        blocks: of the sequence, in text order; row ``i`` is written to its slot ``n_cached + i``.
        n_run: the first so many rows ran in an earlier step and are no rows of this one; others see them as before.
        is_block: every row of a chain sees all rows, as if all of them stood where the last one does.
    """

    n_cached: int
    n_rows: int
    parents: Sequence[int] | None
    blocks: Sequence[int]
    n_run: int = 0
    is_block: bool = False

    @property
    def n_new(self) -> int:
        """Rows of the step."""
        return self.n_rows - self.n_run

    def positions(self) -> Ints:
        """Up to which every row sees, ``[n_rows]``: its own, but in a block."""
        if self.is_block:
            return np.full(self.n_rows, self.n_cached + self.n_rows - 1, np.int32)
        if self.parents is None:
            return np.arange(self.n_cached, self.n_cached + self.n_rows, dtype=np.int32)
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent + 1] + 1)
        return np.asarray(depths, np.int32) + np.int32(self.n_cached)

    def slots(self, first: int, last: int, block_size: int) -> Ints:
        """Arena slots of the sequence's slots ``first`` to ``last - 1``."""
        own = np.arange(first, last)
        blocks = np.asarray(self.blocks, np.int32)
        return (blocks[own // block_size] * block_size + own % block_size).astype(np.int32)


@dataclass(frozen=True, slots=True)
class _Table:
    """Where the slots of positions are told."""

    at: int
    base: int
    unit: int


@dataclass(slots=True)
class ItemLists:
    """Items of a step's works, window by window, with the members and tables that they point to.

    Args:
        layout: of the plan.
        block_size: slots of a block.
        tile: rows of an item.
    """

    layout: Layout
    block_size: int
    tile: int
    ints: list[Ints] = field(default_factory=list)  # members and tables, in the order of their places
    items: list[list[Ints]] = field(default_factory=list)  # of every window, [n, ITEM] each
    end: int = 0  # of what ``ints`` holds

    def __post_init__(self) -> None:
        self.end = self.layout.lists
        self.items = [[np.empty((0, ITEM), np.int32)] for _ in self.layout.windows]
        self.ints.append(np.empty(0, np.int32))

    def add(self, work: PathWork, first_row: int) -> None:
        """The items of a work whose rows begin at ``first_row`` of the step."""
        blocks = _Table(self._put(work.blocks), 0, self.block_size)
        first_row -= work.n_run
        if work.is_block:
            self._add_alike(work, first_row, blocks, work.n_cached + work.n_rows)
        elif work.parents is None:
            for tile in range(work.n_run, work.n_rows, self.tile):
                n = min(self.tile, work.n_rows - tile)
                members = self._put(range(first_row + tile, first_row + tile + n))
                self._add_run(members, n, work.n_cached + tile, blocks, 0)
        else:
            # Splits that lie wholly in the committed prefix: all rows of the tree see them alike.
            self._add_alike(work, first_row, blocks, work.n_cached // self.layout.split * self.layout.split)
            self._add_paths(work, first_row)

    def _add_alike(self, work: PathWork, first_row: int, table: _Table, end: int) -> None:
        """The splits of the positions below ``end``, of which every row sees what its window leaves."""
        split, positions = self.layout.split, work.positions()
        for tile in range(work.n_run, work.n_rows if end else 0, self.tile):
            rows = range(tile, min(tile + self.tile, work.n_rows))
            members, lowest = self._put([first_row + row for row in rows]), int(positions[rows.start : rows.stop].min())
            for place, window in enumerate(self.layout.windows):
                splits = np.arange(self.layout.first_split(lowest, window), -(-end // split), dtype=np.int32)
                self._append(place, splits, members, len(rows), table, np.minimum((splits + 1) * split, end))

    def _add_paths(self, work: PathWork, first_row: int) -> None:
        """The splits behind these, path by path, each with the slots of its own text."""
        shared = work.n_cached // self.layout.split
        base = shared * self.layout.split
        slots = work.slots(base, work.n_cached + work.n_rows, self.block_size)
        prefix, own_slots = slots[: work.n_cached - base], slots[work.n_cached - base :]
        for path in paths_of(work.parents or ()):
            own = [row for row in path.own if row >= work.n_run]  # its last ones: parents precede their children
            if not own:
                continue
            first = len(path.rows) - len(own)
            table = _Table(self._put(np.concatenate((prefix, own_slots[path.rows]))), base, 1)
            for tile in range(0, len(own), self.tile):
                rows = own[tile : tile + self.tile]
                members = self._put([first_row + row for row in rows])
                self._add_run(members, len(rows), work.n_cached + first + tile, table, shared)

    def _add_run(self, members: int, n: int, position: int, table: _Table, from_split: int) -> None:
        """Items of ``n`` rows at consecutive positions, from a split on; each without the rows that end before it."""
        split = self.layout.split
        for place, window in enumerate(self.layout.windows):
            first = max(from_split, self.layout.first_split(position, window))
            splits = np.arange(first, (position + n - 1) // split + 1, dtype=np.int32)
            skipped = np.maximum(splits * split - position, 0)
            ends = np.minimum((splits + 1) * split, position + n)
            self._append(place, splits, members + skipped, n - skipped, table, ends)

    def _append(self, place: int, splits: Ints, members: Ints | int, n: Ints | int, table: _Table, ends: Ints) -> None:
        items = np.zeros((len(splits), ITEM), np.int32)
        columns = (members, n, table.at, table.base, table.unit, splits, ends)
        for column, numbers in enumerate(columns):
            items[:, column] = numbers
        self.items[place].append(items)

    def _put(self, numbers: Sequence[int] | Ints) -> int:
        """Take members or a table; returns their place."""
        at, taken = self.end, np.asarray(numbers, np.int32)
        self.ints.append(taken)
        self.end += len(taken)
        return at
