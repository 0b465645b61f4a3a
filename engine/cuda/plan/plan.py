"""What a step's rows attend to, as one int32 array for the device. NumPy only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.cuda.plan.items import Ints, ItemLists, PathWork
from engine.cuda.plan.layout import BUCKETS, HEADER, MAX_INTS, MAX_WINDOWS, SPLIT, Layout, bucket


@dataclass(frozen=True, slots=True)
class Plan:
    """A step on its way to the device."""

    ints: Ints  # as ``layout`` lays it out
    layout: Layout
    n_rows: int  # of the step; the others fill the bucket
    n_items: tuple[int, ...]  # of every window
    n_partials: int  # of the window that has the most
    n_moves: int = 0  # slots that are copied


@dataclass(frozen=True, slots=True)
class PlanShape:
    """What is the same for every step of a stage.

    Args:
        windows: of its layers; None: one without.
        groups: query heads of a key head.
        block_size: slots of a block of the arena.
        scratch: a slot that no sequence has; rows that fill a bucket are written there.
        split: positions of a split, a parameter for tests: texts longer than it are tests of merging.
        tile: rows times groups that are multiplied at once.
        buckets: of rows.
    """

    windows: tuple[int | None, ...]
    groups: int
    block_size: int
    scratch: int
    split: int = SPLIT
    tile: int = 64
    buckets: tuple[int, ...] = BUCKETS

    @classmethod
    def of(
        cls,
        windows: Collection[int | None],
        groups: int,
        block_size: int,
        scratch: int,
        split: int = SPLIT,
        buckets: tuple[int, ...] = BUCKETS,
    ) -> PlanShape:
        """With the windows in the order of a layout.

        Raises:
            ValueError: there are more kinds of windows than a plan has room for.
        """
        if len(set(windows)) > MAX_WINDOWS:
            raise ValueError(
                f"the layers have {len(set(windows))} kinds of windows; at most {MAX_WINDOWS} are possible"
            )
        ordered = sorted(set(windows), key=lambda window: window or 0)
        return cls(tuple(ordered), groups, block_size, scratch, split, buckets=buckets)


NO_MOVES: tuple[Sequence[int], Sequence[int]] = (), ()


def make_plan(
    works: Sequence[PathWork],
    shape: PlanShape,
    tokens: Sequence[int] = (),
    moves: tuple[Sequence[int], Sequence[int]] = NO_MOVES,
    attends: bool = True,
) -> Plan:
    """The plan of a step.

    Args:
        works: of the step, at least one row among them.
        shape: of the stage.
        tokens: of all rows; (): the stage is told their states.
        moves: slots that are copied before, and where to; the rows' bucket has room for them.
        attends: whether rows attend, and are not only written.

    Raises:
        ValueError: the step has no row, or more rows or keys than a plan can address.
    """
    n_rows = sum(work.n_new for work in works)
    most = max(n_rows, len(moves[0])) if n_rows else 0
    layout = Layout(bucket(most, shape.buckets), shape.windows, shape.split)
    lists = ItemLists(layout, shape.block_size, max(1, shape.tile // shape.groups))
    first = 0
    for work in works if attends else ():
        lists.add(work, first)
        first += work.n_new
    plan = _lay_out(works, n_rows, lists, shape.scratch)
    for place, numbers in ((layout.tokens, tokens), (layout.sources, moves[0]), (layout.targets, moves[1])):
        plan.ints[place][: len(numbers)] = numbers
    return replace(plan, n_moves=len(moves[0]), n_partials=plan.n_partials if attends else 0)


def _lay_out(works: Sequence[PathWork], n_rows: int, lists: ItemLists, scratch: int) -> Plan:
    layout = lists.layout
    items = [np.concatenate(its) for its in lists.items]
    size = lists.end + sum(its.size for its in items)
    if size > MAX_INTS:
        raise ValueError(f"the step's keys and rows take {size} numbers to tell; a plan holds {MAX_INTS}")
    ints = np.empty(size, np.int32)
    ints[:HEADER] = 0
    positions, slots = ints[layout.positions], ints[layout.slots]
    ints[layout.tokens], ints[layout.sources], ints[layout.targets] = 0, -1, -1
    positions[n_rows:], slots[n_rows:] = 0, scratch
    np.concatenate([work.positions()[work.n_run :] for work in works], out=positions[:n_rows])
    written = [work.slots(work.n_cached + work.n_run, work.n_cached + work.n_rows, lists.block_size) for work in works]
    np.concatenate(written, out=slots[:n_rows])
    n_partials = [_number_partials(ints, layout, place, n_rows) for place in range(len(layout.windows))]
    np.concatenate(lists.ints, out=ints[layout.lists : lists.end])
    at = lists.end
    for place, its in enumerate(items):
        ints[2 * place : 2 * place + 2] = len(its), at
        ints[at : at + its.size] = its.reshape(-1)
        at += its.size
    return Plan(ints, layout, n_rows, tuple(len(its) for its in items), max(n_partials))


def _number_partials(ints: Ints, layout: Layout, place: int, n_rows: int) -> int:
    """Give every row as many partials as it has splits under a window; returns how many all have."""
    window, positions = layout.windows[place], ints[layout.positions][:n_rows].astype(np.int64)
    skipped = 0 if window is None else np.maximum(positions - window + 1, 0) // layout.split
    ends = np.cumsum(positions // layout.split - skipped + 1)
    firsts = ints[layout.firsts(place)]
    firsts[0], firsts[1:n_rows], firsts[n_rows:] = 0, ends[:-1], -1
    return int(ends[-1])
