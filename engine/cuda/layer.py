"""The launches of a decoder layer: 10, and one more per shared sum of leaves and per norm after a product.

A mixture of experts has five more (``engine.cuda.experts``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cuda.experts import add_experts
from engine.cuda.kernels.activation import apply_gate
from engine.cuda.kernels.attention import Partials, attend
from engine.cuda.kernels.combine import combine
from engine.cuda.kernels.norm import rms_norm
from engine.cuda.kernels.rope import rotate_and_write
from engine.cuda.occupancy import count_attention_programs
from engine.cuda.operands import ExpertMlps, Heads, LayerWeights, Matrix, Norm
from engine.cuda.plan.layout import PlanLayout
from engine.cuda.plan.plan import StepPlan
from engine.cuda.products import Products
from engine.kv.arena import KVLayer


@dataclass(frozen=True, slots=True)
class StepOnDevice:
    """What the layers read of a step."""

    plan: Tensor  # int32, as ``layout`` lays it out
    layout: PlanLayout
    partials: Partials
    pieces: tuple[range, ...]  # key heads that attend at once; for all heads together the partials may be too large
    programs: tuple[int, ...]  # of ``attend``, for every window of the layout
    overlaps: bool = False  # programmatic dependent launch

    @classmethod
    def of(cls, plan: StepPlan, ints: Tensor, heads: Heads, partial_bytes: int, overlaps: bool = False) -> StepOnDevice:
        """Return a step whose plan is on the device as ``ints``, with memory of its own for partials.

        Partials take at most ``partial_bytes``, or those of one key head: heads then attend piece by piece.
        """
        one = Partials.count_bytes(plan.n_partials, heads.groups, heads.head_dim)
        size = min(heads.n_kv_heads, max(1, partial_bytes // max(1, one)))
        while heads.n_kv_heads % size:
            size -= 1
        pieces = tuple(range(first, first + size) for first in range(0, heads.n_kv_heads, size))
        partials = Partials.empty(plan.n_partials, heads.groups * size, heads.head_dim, ints.device)
        most = count_attention_programs(ints.device, size, heads.head_dim)
        programs = tuple(min(most, n) for n in plan.n_items)
        return cls(ints, plan.layout, partials, pieces, programs, overlaps)


def run_layer(
    layer: LayerWeights,
    hidden: Tensor,
    step: StepOnDevice,
    arena: KVLayer,
    products: Products,
    capture_query: Callable[[Tensor], None] | None = None,
) -> None:
    """Add one layer to the residual stream ``[n_rows, hidden]``.

    Args:
        layer: its weights.
        hidden: the stream, changed in place. Every sum is rounded to its dtype before it is added.
        step: which rows see which keys.
        arena: the layer's keys and values; those of this step are written.
        products: multiplies rows by the layer's matrices.
        capture_query: is called with the rotated queries ``[n_rows, n_heads * head_dim]``.
    """
    overlaps = step.overlaps
    qkv = products.multiply(_normalise(layer.before_attention, hidden, overlaps), layer.qkv, overlaps=overlaps)
    query = hidden.new_empty(len(hidden), layer.heads.n_heads * layer.heads.head_dim)
    rotate_and_write(
        qkv,
        step.plan[step.layout.positions],
        step.plan[step.layout.slots],
        layer.rotary,
        layer.heads,
        layer.head_norms,
        query,
        arena.keys,
        arena.values,
        overlaps=overlaps,
    )
    if capture_query is not None:
        capture_query(query)
    attention = attend_step(query, arena, step, layer.heads)
    _add_product(products, attention, layer.attention_out, hidden, layer.after_attention, overlaps)
    rows, mlp = _normalise(layer.before_mlp, hidden, overlaps), layer.mlp
    if isinstance(mlp, ExpertMlps):
        firsts = step.plan[step.layout.firsts(0)]
        add_experts(mlp, rows, firsts, layer.activation, hidden, products.row_tile, overlaps)
        return
    gate_up = products.multiply(rows, mlp.gate_up, overlaps=overlaps)
    active = hidden.new_empty(len(hidden), gate_up.shape[1] // 2)
    apply_gate(gate_up, active, layer.activation, overlaps=overlaps)
    _add_product(products, active, mlp.down, hidden, layer.after_mlp, overlaps)


def attend_step(query: Tensor, arena: KVLayer, step: StepOnDevice, heads: Heads) -> Tensor:
    """Return the attention of rotated queries, ``[n_rows, n_heads * head_dim]`` like them; keys are in the arena."""
    programs, out = step.programs[step.layout.window_number(heads.window)], torch.empty_like(query)
    plan, layout, partials, overlaps = step.plan, step.layout, step.partials, step.overlaps
    for piece in step.pieces:
        attend(query, arena.keys, arena.values, plan, layout, heads, piece, partials, programs, overlaps=overlaps)
        combine(partials, plan, layout, heads, piece, out, overlaps=overlaps)
    return out


def _normalise(norm: Norm, hidden: Tensor, overlaps: bool) -> Tensor:
    out = torch.empty_like(hidden)
    rms_norm(hidden, norm, out, overlaps=overlaps)
    return out


def _add_product(
    products: Products, rows: Tensor, matrix: Matrix, hidden: Tensor, after: Norm | None, overlaps: bool
) -> None:
    """Add a product to ``hidden``, normalised first if the family has a norm there."""
    if after is None:
        products.multiply(rows, matrix, hidden, hidden, overlaps)
        return
    product = products.multiply(rows, matrix, overlaps=overlaps)
    rms_norm(product, after, hidden, residual=hidden, overlaps=overlaps)
