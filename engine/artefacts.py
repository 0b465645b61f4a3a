"""Attention rows of chosen heads for the position that predicted the bonus token (PLD+, paper 003).

Fused kernels return no weights, so ``q . k`` is recomputed, for the few heads that were asked for only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.attention.hook import CapturedQuery, PackedStep
from engine.kv.table import BlockTable
from engine.model.shard import LayerRange
from engine.packing import Span
from engine.step import Work, WorkResult
from engine.tree import FloatArray

AttentionRows = dict[tuple[int, int], FloatArray]  # (sequence, place in its needs.heads) -> [n_positions]


def attention_rows(
    work: Work,
    span: Span,
    result: WorkResult,
    heads: Sequence[tuple[int, int]],
    layers: LayerRange,
    step: PackedStep,
    table: BlockTable,
) -> AttentionRows:
    """Rows for the heads of this stage, each over all committed positions up to the last forwarded one."""
    kept = [0, *(node + 1 for node in result.accepted)] if work.tree is not None else list(range(len(work.tokens)))
    n_positions = work.n_cached + len(kept)
    device = step.arena.layer(0).keys.device
    slots = torch.cat(
        (
            table.rows(0, work.n_cached, device),
            torch.tensor([table.row(work.n_cached + row) for row in kept], device=device),
        )
    )
    rows: AttentionRows = {}
    for place, (layer, head) in enumerate(heads):
        if not layers.first <= layer < layers.last:
            continue
        local = layer - layers.first
        captured = step.captured[local]
        position = sorted(step.capture_heads[local]).index(head)
        keys = step.arena.layer(local).keys
        groups = captured.n_heads // keys.shape[1]
        rows[work.seq, place] = _row(
            captured, position, span.first + kept[-1], keys[slots, head // groups], n_positions
        )
    return rows


def _row(captured: CapturedQuery, position: int, row: int, keys: torch.Tensor, n_positions: int) -> FloatArray:
    """Softmax of one query over ``keys`` ``[n_positions, head_dim]``; 0 outside a sliding window."""
    scores = (keys @ captured.query[position, row]).float() * captured.scale
    if captured.window is not None:
        scores[: max(0, n_positions - captured.window)] = float("-inf")
    weights = torch.softmax(scores, dim=0)
    return np.ascontiguousarray(weights.cpu().numpy(), dtype=np.float32)
