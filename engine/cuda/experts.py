"""The launches of a mixture of experts: 8, for every ``MOST_ROWS`` rows, and one more if the router has several leaves.

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
from engine.cuda.kernels.gemm import MOST_ROWS, choose_matrix_tile
from engine.cuda.kernels.leaves import add_leaves
from engine.cuda.operands import ExpertMlps
from engine.cuda.products import Products


def run_experts(
    mlps: ExpertMlps,
    rows: Tensor,
    firsts: Tensor,
    activation: str,
    products: Products,
    out: Tensor,
    residual: Tensor | None = None,
    overlaps: bool = False,
) -> None:
    """Write the weighted sum of every row's experts, rounded, or ``residual +`` that, to ``out``.

    Args:
        mlps: of the layer.
        rows: ``[n, hidden]``, rows contiguous.
        firsts: int32 ``[n]``, negative for rows that fill a bucket, which have no expert.
        activation: of the gate, as ``kernels.activation`` names it.
        products: multiplies rows by the router.
        out: like ``rows``; may be ``residual``, must not be ``rows``.
        residual: like ``rows``.
        overlaps: launches may overlap the previous kernel's end.

    Raises:
        EOFError, OSError: a rank that has other experts is lost.
    """
    slices = [slice(first, first + MOST_ROWS) for first in range(0, len(rows), MOST_ROWS)]
    if mlps.ranks is None:
        for some in slices:
            sums = torch.empty(out[some].shape, dtype=torch.float32, device=rows.device)
            _sum_own(mlps, rows[some], firsts[some], activation, products, sums, overlaps)
            add_leaves(sums, out[some], residual=None if residual is None else residual[some], overlaps=overlaps)
        return

    def finish(sums: Tensor, some: slice) -> None:
        if len(sums):
            add_leaves(sums, out[some], residual=None if residual is None else residual[some])

    partial = torch.empty(out.shape, dtype=torch.float32, device=rows.device)
    for some in slices:
        _sum_own(mlps, rows[some], firsts[some], activation, products, partial[some], overlaps)
    mlps.ranks.connected.add(partial, out, finish)


def _sum_own(
    mlps: ExpertMlps,
    rows: Tensor,
    firsts: Tensor,
    activation: str,
    products: Products,
    sums: Tensor,
    overlaps: bool,
) -> None:
    """Write the weighted sums of this process's experts to ``sums``, fp32 ``[n, hidden]``."""
    scores = products.multiply(rows, mlps.router, overlaps=overlaps)
    experts, weights = route(scores, firsts, mlps.per_row, mlps.normalizes, mlps.rounds_weights, overlaps=overlaps)
    n_pairs, width = experts.numel(), len(mlps.gate_up.weight) // (2 * mlps.n_own)
    # Rows of a tile: as many pairs as an expert has on average.
    pairs_of_expert = triton.cdiv(n_pairs, mlps.n_experts)
    up_tile = choose_matrix_tile(mlps.gate_up, pairs_of_expert, rows, products.row_tile)
    tiles = sort_pairs(experts, mlps.first, mlps.n_own, up_tile.rows, overlaps=overlaps)
    gate_up, active, values = (rows.new_empty(n_pairs, size) for size in (2 * width, width, rows.shape[1]))
    multiply_pairs(rows, mlps.gate_up, tiles, up_tile, gate_up, overlaps=overlaps)
    own = range(mlps.first, mlps.first + mlps.n_own)
    apply_gate(gate_up, active, activation, experts, own, overlaps=overlaps)
    down_tile = choose_matrix_tile(mlps.down, pairs_of_expert, rows, up_tile.rows)
    multiply_pairs(active, mlps.down, tiles, down_tile, values, overlaps=overlaps)
    sum_experts(values, experts, weights, mlps, sums, overlaps=overlaps)
