"""Runs the experts of a layer: 7 launches for every ``MOST_ROWS`` rows, one more if the router has leaves, and a sum.

All shapes depend on the number of rows alone, so CUDA graphs can record them. What a row's experts add to it depends on
that row alone: not on the other rows, the tiles, or the number of ranks.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from engine.cuda.kernels.activation import apply_gate
from engine.cuda.kernels.experts.products import multiply_pairs, sum_experts
from engine.cuda.kernels.experts.routing import route, sort_pairs
from engine.cuda.kernels.gemm import MOST_ROWS, choose_matrix_tile, multiply
from engine.cuda.kernels.leaves import add_leaves
from engine.cuda.operands import ExpertMlps


def add_experts(
    mlps: ExpertMlps,
    rows: Tensor,
    firsts: Tensor,
    activation: str,
    hidden: Tensor,
    row_tile: int | None = None,
    overlaps: bool = False,
) -> None:
    """Add the weighted sum of every row's experts, rounded once, to ``hidden``.

    Args:
        mlps: of the layer.
        rows: normalised ``[n, hidden]``, rows contiguous.
        firsts: int32 ``[n]`` of the plan; only their signs count: rows that fill a bucket are negative, and have no
            expert.
        activation: of the gate, as ``kernels.activation`` names it.
        hidden: the residual stream, like ``rows``.
        row_tile: rows that products multiply at once; None: by the number of rows.
        overlaps: launches may overlap the previous kernel's end.

    Raises:
        EOFError, OSError: a rank that has other experts is lost.
    """
    sums = torch.empty(hidden.shape, dtype=torch.float32, device=rows.device)
    for first in range(0, len(rows), MOST_ROWS):
        some = slice(first, first + MOST_ROWS)
        _sum_own(mlps, rows[some], firsts[some], activation, sums[some], row_tile, overlaps)
    if mlps.ranks is None:
        add_leaves(sums, hidden, residual=hidden, overlaps=overlaps)
        return

    def finish(parts: Tensor, some: slice) -> None:
        if len(parts):
            add_leaves(parts, hidden[some], residual=hidden[some])

    mlps.ranks.connected.add(sums, hidden, finish)


def _sum_own(
    mlps: ExpertMlps,
    rows: Tensor,
    firsts: Tensor,
    activation: str,
    sums: Tensor,
    row_tile: int | None,
    overlaps: bool,
) -> None:
    """Write the weighted sums of this process's experts to ``sums``, fp32 ``[n, hidden]``."""
    # Never by a library, whose rounding could give a row other experts in another step or on another rank.
    scores = rows.new_empty(len(rows), mlps.n_experts)
    multiply(rows, mlps.router, scores, row_tile=row_tile, overlaps=overlaps)
    experts, weights = route(scores, firsts, mlps.per_row, mlps.normalizes, mlps.rounds_weights, overlaps=overlaps)
    n_pairs, width = experts.numel(), len(mlps.gate_up.weight) // (2 * mlps.n_own)
    # Rows of a tile: as many pairs as an expert has on average.
    pairs_of_expert = triton.cdiv(n_pairs, mlps.n_experts)
    up_tile = choose_matrix_tile(mlps.gate_up, pairs_of_expert, rows, row_tile)
    tiles = sort_pairs(experts, mlps.first, mlps.n_own, up_tile.rows, overlaps=overlaps)
    gate_up, active, values = (rows.new_empty(n_pairs, size) for size in (2 * width, width, rows.shape[1]))
    multiply_pairs(rows, mlps.gate_up, tiles, up_tile, gate_up, overlaps=overlaps)
    own = range(mlps.first, mlps.first + mlps.n_own)
    apply_gate(gate_up, active, activation, experts, own, overlaps=overlaps)
    down_tile = choose_matrix_tile(mlps.down, pairs_of_expert, rows, up_tile.rows)
    multiply_pairs(active, mlps.down, tiles, down_tile, values, overlaps=overlaps)
    sum_experts(values, experts, weights, mlps, sums, overlaps=overlaps)
