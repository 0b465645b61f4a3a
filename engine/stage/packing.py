"""Turns the work of a step into one packed batch: tokens, positions, arena rows, attention segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.attention.packed_step import PackedStep
from engine.attention.segment import Segment
from engine.cuda.plan.items import PathWork
from engine.cuda.plan.plan import PlanShape, make_plan
from engine.cuda.planned_step import PlannedStep
from engine.kv.arena import BlockTable, KVArena
from engine.step import SequenceStart, Step, Work
from engine.upload import Upload, Uploaded


@dataclass(slots=True)
class Span:
    """Rows of one sequence's work in the packed batch."""

    first: int
    n: int


def row_tokens(work: Work) -> list[int]:
    """Token ids row by row."""
    return work.tokens + work.tree.tokens if work.tree is not None else work.tokens


def depths(work: Work) -> list[int]:
    """Position of every row relative to ``n_cached``."""
    if work.tree is None:
        return list(range(len(work.tokens)))
    return [0, *work.tree.depths]


def compaction(works: Sequence[Work], tables: dict[int, BlockTable]) -> tuple[list[int], list[int]]:
    """Arena rows to move (from, to) so that accepted nodes follow the committed text without a gap."""
    source: list[int] = []
    target: list[int] = []
    for work in works:
        if not work.keep:
            continue
        table = tables[work.seq]
        root = work.n_cached - 1 - len(work.keep)  # slot of the previous step's root
        for i, row in enumerate(work.keep, start=1):
            if row != i:
                source.append(table.row(root + row))
                target.append(table.row(root + i))
    return source, target


def copies(
    starts: Sequence[SequenceStart], tables: dict[int, BlockTable], block_size: int
) -> tuple[list[int], list[int]]:
    """Arena rows to copy (from, to) so that new sequences begin with a prefix that is in the cache.

    All rows are copied at once: a block that one sequence takes over may be the source of another.
    """
    source: list[int] = []
    target: list[int] = []
    for start in starts:
        table = tables[start.seq]
        for slot in range(start.n_copied):
            source.append(start.source[slot // block_size] * block_size + slot % block_size)
            target.append(table.row(slot))
    return source, target


@dataclass(slots=True, frozen=True)
class RowMove:
    """Arena rows to copy over all layers."""

    source: Uploaded  # int64 [n]
    target: Uploaded  # int64 [n]
    is_apart: bool  # no row is both read and written


@dataclass(slots=True, frozen=True)
class RowMoves:
    """Copies within the arena before a step writes its rows, in this order."""

    copies: RowMove | None  # of prefixes
    compaction: RowMove | None  # of accepted paths


def plan_moves(
    step: Step, tables: dict[int, BlockTable], block_size: int, upload: Upload, compacts: bool = True
) -> RowMoves:
    """The moves of a step; without compaction for an executor, whose plan includes it."""
    pairs = [copies(step.starts, tables, block_size), compaction(step.work, tables) if compacts else ([], [])]
    planned = [
        RowMove(upload.add(source), upload.add(target), set(source).isdisjoint(target)) if source else None
        for source, target in pairs
    ]
    return RowMoves(*planned)


@dataclass(slots=True)
class Packed:
    """A step ready to run once its upload is sent."""

    spans: list[Span]
    step: PackedStep
    tokens: Uploaded | None = None  # int64 [n_rows]; None: an executor's step, whose plan has them
    positions: Uploaded | None = None  # int64 [n_rows]; None as for ``tokens``


def pack(works: Sequence[Work], tables: dict[int, BlockTable], arena: KVArena, upload: Upload) -> Packed:
    """Pack the works of a step, one after the other.

    Args:
        works: of one step.
        tables: of their sequences, with the blocks of this step.
        arena: of the stage.
        upload: takes the data that the device needs.
    """
    spans: list[Span] = []
    segments: list[Segment] = []
    positions: list[int] = []
    first = 0
    for work in works:
        below = depths(work)
        visible = None if work.tree is None or work.tree.is_chain else work.tree.ancestor_mask()
        segments.append(Segment(work.n_cached, below, visible, tables[work.seq]))
        spans.append(Span(first, len(below)))
        positions.extend(work.n_cached + depth for depth in below)
        first += len(below)
    step = PackedStep.of(segments, arena, upload)
    tokens = [token for work in works for token in row_tokens(work)]
    return Packed(spans, step, upload.add(tokens), upload.add(positions))


def pack_plan(
    works: Sequence[Work], tables: dict[int, BlockTable], arena: KVArena, upload: Upload, shape: PlanShape
) -> Packed:
    """Pack works for an executor of ``engine.cuda``; the plan also moves the rows of accepted paths."""
    spans: list[Span] = []
    paths: list[PathWork] = []
    tokens: list[int] = []
    for work in works:
        first = len(tokens)
        tokens += row_tokens(work)
        n_rows = len(tokens) - first
        parents = None if work.tree is None or work.tree.is_chain else work.tree.parent_array
        paths.append(PathWork(work.n_cached, n_rows, parents, tables[work.seq].block_array))
        spans.append(Span(first, n_rows))
    plan = make_plan(paths, shape, tokens, compaction(works, tables))
    step = PlannedStep(arena, [], None, None, plan=plan, ints=upload.add(plan.ints, np.int32))
    return Packed(spans, step)
