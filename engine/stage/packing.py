"""Turns the work of a step into one packed batch: tokens, positions, arena rows, attention segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.hook import PackedStep
from engine.attention.segment import Segment
from engine.kv.arena import BlockTable, KVArena
from engine.step import SequenceStart, Work


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


@dataclass(slots=True)
class Packed:
    """A step ready to run."""

    spans: list[Span]
    positions: Tensor  # int64 [n_rows]
    step: PackedStep


def pack(
    works: Sequence[Work],
    tables: dict[int, BlockTable],
    arena: KVArena,
    groups: int,
    device: torch.device,
    reference: bool,
) -> Packed:
    """Lay the works side by side; ``reference`` selects the oracle attention."""
    spans: list[Span] = []
    segments: list[Segment] = []
    positions: list[int] = []
    first = 0
    for work in works:
        below = depths(work)
        visible = None if work.tree is None or work.tree.is_chain else work.tree.ancestor_mask()
        segments.append(Segment(first, work.n_cached, below, visible, tables[work.seq], groups, reference))
        spans.append(Span(first, len(below)))
        positions.extend(work.n_cached + depth for depth in below)
        first += len(below)
    start, rows = _write_rows(works, spans, tables, device)
    step = PackedStep(arena, segments, start, rows)
    return Packed(spans, torch.tensor(positions, device=device), step)


def _write_rows(
    works: Sequence[Work], spans: Sequence[Span], tables: dict[int, BlockTable], device: torch.device
) -> tuple[int | None, Tensor | None]:
    """Where keys and values go: a start row when one contiguous run suffices, else every row."""
    if len(works) == 1 and tables[works[0].seq].base is not None:
        return tables[works[0].seq].row(works[0].n_cached), None
    parts: list[int] = []
    for work, span in zip(works, spans, strict=True):
        table = tables[work.seq]
        if table.base is not None:
            parts.extend(range(table.base + work.n_cached, table.base + work.n_cached + span.n))
        else:
            parts.extend(table.row(slot) for slot in range(work.n_cached, work.n_cached + span.n))
    return None, torch.tensor(parts, device=device)
