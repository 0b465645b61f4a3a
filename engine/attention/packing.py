"""Lays the rows of many sequences side by side: who sees whom, and where their keys and values go."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from engine.attention.batches import Share, make_batches
from engine.attention.hook import PackedStep
from engine.attention.segment import Segment
from engine.kv.arena import KVArena
from engine.upload import Upload

Attends = Literal["one by one", "together", "reference"]  # segments, batches, the oracle's segments


def pack_shares(
    shares: Sequence[Share],
    arena: KVArena,
    upload: Upload,
    groups: int,
    windows: Collection[int | None],
    attends: Attends,
) -> PackedStep:
    """A step of these rows, which are written to the slots behind each sequence's committed ones.

    Args:
        shares: of all sequences; their tables have the slots.
        arena: where keys and values go.
        upload: takes what the device has to know; the step can run once it is sent.
        groups: query heads per key head.
        windows: the sliding windows of the layers.
        attends: how the layers will attend.
    """
    start, rows = _write_rows(shares)
    step = PackedStep(arena, [], start, None if rows is None else upload.add(rows))
    if attends == "together":
        step.batches = make_batches(shares, windows, upload)
        return step
    first = 0
    for s in shares:
        step.segments.append(Segment(first, s.n_cached, s.depths, s.visible, s.table, groups, attends == "reference"))
        first += len(s.depths)
    return step


def _write_rows(shares: Sequence[Share]) -> tuple[int | None, NDArray[np.int64] | None]:
    """Where keys and values go: a start row when one contiguous run suffices, else every row."""
    if len(shares) == 1 and shares[0].table.base is not None:
        return shares[0].table.row(shares[0].n_cached), None
    return None, np.concatenate([s.table.row_numbers(s.n_cached, s.n_cached + len(s.depths)) for s in shares])
