"""The planner in plain Python: the definition that the compiled one is compared with, number by number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from engine.cuda.plan.items import Ints, PathWork
from engine.cuda.plan.layout import ITEM, PlanLayout, bucket
from engine.cuda.plan.plan import NO_MOVES, PlanShape, StepPlan


def positions_of(work: PathWork) -> Ints:
    """The position up to which every row sees, ``[n_rows]``."""
    if work.is_block:
        return np.full(work.n_rows, work.n_cached + work.n_rows - 1, np.int32)
    if work.parents is None:
        return np.arange(work.n_cached, work.n_cached + work.n_rows, dtype=np.int32)
    depths = [0]
    for parent in work.parents:
        depths.append(depths[parent + 1] + 1)
    return np.asarray(depths, np.int32) + np.int32(work.n_cached)


def first_split(layout: PlanLayout, position: int, window: int | None) -> int:
    """The first split of which a row at ``position`` sees something."""
    return 0 if window is None else max(0, position - window + 1) // layout.split


def slots_of(work: PathWork, first: int, last: int, block_size: int) -> Ints:
    """Arena slots of a sequence's slots ``first`` to ``last - 1``."""
    own = np.arange(first, last)
    blocks = np.asarray(work.blocks, np.int32)
    return (blocks[own // block_size] * block_size + own % block_size).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Path:
    """Rows from the root (row 0) to a leaf; those from ``first`` on are not part of an earlier path."""

    rows: list[int]
    first: int


def paths_of(parents: Sequence[int] | Ints) -> list[Path]:
    """The paths of a tree, one for each leaf."""
    leaves = set(range(len(parents) + 1)) - {int(parent) + 1 for parent in parents}
    owned: set[int] = set()
    paths: list[Path] = []
    for leaf in sorted(leaves):
        rows = [leaf]
        while rows[-1]:
            rows.append(int(parents[rows[-1] - 1]) + 1)
        paths.append(Path(rows[::-1], sum(row in owned for row in rows)))
        owned.update(rows)
    return paths


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """Where a table begins in the plan, the position of its first entry, and the slots of an entry."""

    at: int
    base: int
    unit: int


@dataclass(slots=True)
class ItemLists:
    """Items of a step's works, window by window, with the members and tables that they point to."""

    layout: PlanLayout
    block_size: int
    tile: int  # rows of an item
    ints: list[Ints] = field(default_factory=list)  # members and tables, in the order of their places
    items: list[list[Ints]] = field(default_factory=list)  # of every window, [n, ITEM] each
    end: int = 0  # of what ``ints`` holds

    def __post_init__(self) -> None:
        self.end = self.layout.lists
        self.items = [[np.empty((0, ITEM), np.int32)] for _ in self.layout.windows]

    def add(self, work: PathWork, first_row: int) -> None:
        """Add the items of a work whose rows begin at ``first_row`` of the step."""
        blocks = PlannedTable(self._put(work.blocks), 0, self.block_size)
        first_row -= work.n_run
        if work.is_block:
            self._add_alike(work, first_row, blocks, work.n_cached + work.n_rows)
        elif work.parents is None:
            for tile in range(work.n_run, work.n_rows, self.tile):
                n = min(self.tile, work.n_rows - tile)
                members = self._put(range(first_row + tile, first_row + tile + n))
                self._add_run(members, n, work.n_cached + tile, blocks, 0)
        else:
            self._add_alike(work, first_row, blocks, work.n_cached // self.layout.split * self.layout.split)
            self._add_paths(work, first_row)

    def _add_alike(self, work: PathWork, first_row: int, table: PlannedTable, end: int) -> None:
        split, positions = self.layout.split, positions_of(work)
        for tile in range(work.n_run, work.n_rows if end else 0, self.tile):
            rows = range(tile, min(tile + self.tile, work.n_rows))
            members, lowest = self._put([first_row + row for row in rows]), int(positions[rows.start : rows.stop].min())
            for place, window in enumerate(self.layout.windows):
                splits = np.arange(first_split(self.layout, lowest, window), -(-end // split), dtype=np.int32)
                self._append(place, splits, members, len(rows), table, np.minimum((splits + 1) * split, end))

    def _add_paths(self, work: PathWork, first_row: int) -> None:
        shared = work.n_cached // self.layout.split
        base = shared * self.layout.split
        slots = slots_of(work, base, work.n_cached + work.n_rows, self.block_size)
        prefix, own_slots = slots[: work.n_cached - base], slots[work.n_cached - base :]
        for path in paths_of(() if work.parents is None else work.parents):
            own = [row for row in path.rows[path.first :] if row >= work.n_run]
            if not own:
                continue
            first = len(path.rows) - len(own)
            table = PlannedTable(self._put(np.concatenate((prefix, own_slots[path.rows]))), base, 1)
            for tile in range(0, len(own), self.tile):
                rows = own[tile : tile + self.tile]
                members = self._put([first_row + row for row in rows])
                self._add_run(members, len(rows), work.n_cached + first + tile, table, shared)

    def _add_run(self, members: int, n: int, position: int, table: PlannedTable, from_split: int) -> None:
        split = self.layout.split
        for place, window in enumerate(self.layout.windows):
            first = max(from_split, first_split(self.layout, position, window))
            splits = np.arange(first, (position + n - 1) // split + 1, dtype=np.int32)
            skipped = np.maximum(splits * split - position, 0)
            ends = np.minimum((splits + 1) * split, position + n)
            self._append(place, splits, members + skipped, n - skipped, table, ends)

    def _append(
        self, place: int, splits: Ints, members: Ints | int, n: Ints | int, table: PlannedTable, ends: Ints
    ) -> None:
        items = np.zeros((len(splits), ITEM), np.int32)
        columns = (members, n, table.at, table.base, table.unit, splits, ends)
        for column, numbers in enumerate(columns):
            items[:, column] = numbers
        self.items[place].append(items)

    def _put(self, numbers: Sequence[int] | Ints) -> int:
        at, taken = self.end, np.asarray(numbers, np.int32)
        self.ints.append(taken)
        self.end += len(taken)
        return at


def slow_plan(
    works: Sequence[PathWork],
    shape: PlanShape,
    tokens: Sequence[int] = (),
    moves: tuple[Sequence[int], Sequence[int]] = NO_MOVES,
    attends: bool = True,
) -> StepPlan:
    """What ``make_plan`` returns."""
    n_rows = sum(work.n_new for work in works)
    layout = PlanLayout(bucket(max(n_rows, len(moves[0])), shape.buckets), shape.windows, shape.split)
    lists = ItemLists(layout, shape.block_size, max(1, shape.tile // shape.groups))
    first = 0
    for work in works if attends else ():
        lists.add(work, first)
        first += work.n_new
    plan = _lay_out(works, n_rows, lists, shape.scratch)
    for place, numbers in ((layout.tokens, tokens), (layout.sources, moves[0]), (layout.targets, moves[1])):
        plan.ints[place][: len(numbers)] = numbers
    return replace(plan, n_moves=len(moves[0]), n_partials=plan.n_partials if attends else 0)


def _lay_out(works: Sequence[PathWork], n_rows: int, lists: ItemLists, scratch: int) -> StepPlan:
    layout, items = lists.layout, [np.concatenate(some) for some in lists.items]
    ints = np.zeros(lists.end + sum(some.size for some in items), np.int32)
    positions, slots = ints[layout.positions], ints[layout.slots]
    ints[layout.sources], ints[layout.targets], slots[n_rows:] = -1, -1, scratch
    positions[:n_rows] = np.concatenate([positions_of(work)[work.n_run :] for work in works])
    written = [(work, work.n_cached + work.n_run, work.n_cached + work.n_rows) for work in works]
    slots[:n_rows] = np.concatenate([slots_of(*rows, lists.block_size) for rows in written])
    n_partials = [_number_partials(ints, layout, place, n_rows) for place in range(len(layout.windows))]
    ints[layout.lists : lists.end] = np.concatenate([np.empty(0, np.int32), *lists.ints])
    at = lists.end
    for place, some in enumerate(items):
        ints[2 * place : 2 * place + 2] = len(some), at
        ints[at : at + some.size] = some.reshape(-1)
        at += some.size
    return StepPlan(ints, layout, n_rows, tuple(len(some) for some in items), max(n_partials))


def _number_partials(ints: Ints, layout: PlanLayout, place: int, n_rows: int) -> int:
    """Give every row as many partials as it has splits under a window; returns how many all have."""
    window, positions = layout.windows[place], ints[layout.positions][:n_rows].astype(np.int64)
    skipped = 0 if window is None else np.maximum(positions - window + 1, 0) // layout.split
    ends = np.cumsum(positions // layout.split - skipped + 1)
    firsts = ints[layout.firsts(place)]
    firsts[0], firsts[1:n_rows], firsts[n_rows:] = 0, ends[:-1], -1
    return int(ends[-1])
