"""The plan of a step, which says what its rows attend to, as one int32 array for the device. No torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from engine.cuda.plan.answer import make_answer
from engine.cuda.plan.answer_layout import NO_DRAWS, READ
from engine.cuda.plan.items import Ints, PathWork, flatten
from engine.cuda.plan.layout import BUCKETS, HEADER, ITEM, MAX_INTS, MAX_WINDOWS, SPLIT, TILE, PlanLayout, bucket


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A planned step."""

    ints: Ints  # arranged by ``layout``
    layout: PlanLayout
    n_rows: int  # rows of the step; the others fill the bucket
    n_items: tuple[int, ...]  # items of every window
    n_partials: int  # partials of the window with the most
    n_moves: int = 0  # slots that are copied


@dataclass(frozen=True, slots=True)
class PlanShape:
    """Parameters that all steps of a stage share.

    Args:
        windows: sliding windows of the layers, ascending; None (no window) first.
        groups: query heads per key head.
        block_size: slots per block of the arena.
        scratch: a slot that belongs to no sequence, for rows that fill a bucket.
        split: positions per split; tests use few, so that short texts have several splits.
        tile: rows times groups of an item.
        buckets: numbers of rows for which launches are recorded.
    """

    windows: tuple[int | None, ...]
    groups: int
    block_size: int
    scratch: int
    split: int = SPLIT
    tile: int = TILE
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
        """Return the shape with its windows in order.

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
) -> StepPlan:
    """Return the plan of a step.

    Args:
        works: of the step; they have at least one row.
        shape: of the stage.
        tokens: of all rows; (): the stage receives hidden states.
        moves: slots that are copied before the step, and their destinations.
        attends: whether rows attend; otherwise only their keys and values are written.

    Raises:
        ValueError: the step has no row, or more rows or keys than a plan can address, or the rows, parents and blocks
            of a work do not fit each other.
    """
    # Imports Numba, which costs 0.2 s and 58 MB, and which a stage on a CPU does not need.
    from engine.cuda.plan.fill import add_items, fill_rows, find_invalid

    n_rows = sum(work.n_new for work in works)
    most = max(n_rows, len(moves[0])) if n_rows else 0
    layout = PlanLayout(bucket(most, shape.buckets), shape.windows, shape.split)
    flat = flatten(works, shape.windows, shape.block_size, shape.split, max(1, shape.tile // shape.groups))
    if (invalid := find_invalid(flat)) >= 0:
        raise ValueError(_contradiction(invalid, works[invalid], shape.block_size))
    cursors = np.zeros(1 + len(shape.windows), np.int64)
    cursors[0] = layout.lists
    if attends:
        add_items(flat, np.empty(0, np.int32), cursors)
    ends = cursors.cumsum()  # of members and tables, and of the items of every window
    if ends[-1] > MAX_INTS:
        raise ValueError(f"the step's keys and rows take {ends[-1]} integers; a plan holds at most {MAX_INTS}")
    n_items = cursors[1:] // ITEM
    ints = np.empty(ends[-1], np.int32)
    ints[:HEADER] = 0
    ints[: 2 * len(n_items) : 2], ints[1 : 2 * len(n_items) : 2] = n_items, ends[:-1]
    n_partials = fill_rows(flat, ints[HEADER : layout.lists].reshape(-1, layout.n_rows), shape.scratch)
    if attends:
        cursors[0], cursors[1:] = layout.lists, ends[:-1]
        add_items(flat, ints, cursors)
    for place, numbers in ((layout.tokens, tokens), (layout.sources, moves[0]), (layout.targets, moves[1])):
        ints[place][: len(numbers)] = numbers
    return StepPlan(ints, layout, n_rows, tuple(n_items.tolist()), n_partials if attends else 0, len(moves[0]))


def compile_planner() -> None:
    """Compile ``make_plan`` and ``make_answer`` before a request needs them: seconds, or 0.3 s from the cache."""
    make_plan([PathWork(0, 2, (-1,), (0,))], PlanShape((None,), 1, 2, 0))
    make_answer((0,), 0, NO_DRAWS, np.array([READ], np.int32), 0)


def _contradiction(number: int, work: PathWork, block_size: int) -> str:
    n_parents = "no" if work.parents is None else len(work.parents)
    return (
        f"work {number} has {work.n_rows} rows after {work.n_cached} tokens, {work.n_run} of which ran before, "
        f"{n_parents} parents and {len(work.blocks)} blocks of {block_size} slots; the blocks must have a slot for "
        "every token and row, and every node but the root one parent, which comes before it"
    )
