"""Lays the rows of many sequences one after the other: who sees whom, and where their keys and values go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.attention.hook import PackedStep
from engine.attention.segment import Segment
from engine.kv.arena import BlockTable, KVArena
from engine.tree import BoolArray
from engine.upload import Upload


@dataclass(slots=True, frozen=True)
class Share:
    """One sequence's rows in a step: queries at ``n_cached + depths``, after ``n_cached`` committed tokens."""

    n_cached: int
    depths: list[int]  # [n]
    visible: BoolArray | None  # [n, n] which query sees which, None for a chain
    table: BlockTable


def pack_shares(
    shares: Sequence[Share], arena: KVArena, upload: Upload, groups: int, reference: bool = False
) -> PackedStep:
    """A step of these rows, which are written to the slots after each sequence's committed ones.

    Args:
        shares: of all sequences; their tables have the slots.
        arena: where keys and values go.
        upload: takes the row numbers for the device; the step can run once it is sent.
        groups: query heads per key head.
        reference: attend as the slow oracle does.
    """
    start, rows = _write_rows(shares)
    step = PackedStep(arena, [], start, None if rows is None else upload.add(rows))
    first = 0
    for s in shares:
        step.segments.append(Segment(first, s.n_cached, s.depths, s.visible, s.table, groups, reference))
        first += len(s.depths)
    return step


def _write_rows(shares: Sequence[Share]) -> tuple[int | None, NDArray[np.int64] | None]:
    """Where keys and values go: a start row when one contiguous run suffices, else every row."""
    if len(shares) == 1 and shares[0].table.base is not None:
        return shares[0].table.row(shares[0].n_cached), None
    return None, np.concatenate([s.table.row_numbers(s.n_cached, s.n_cached + len(s.depths)) for s in shares])
