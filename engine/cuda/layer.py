"""The launches of a decoder layer: 10, and 12 where norms stand on both sides of attention and MLP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cuda.kernels.activation import gated
from engine.cuda.kernels.attention import PROGRAMS, Heads, Partials, attend
from engine.cuda.kernels.combine import combine
from engine.cuda.kernels.gemm import linear, multiply, parts_of
from engine.cuda.kernels.norm import rms_norm
from engine.cuda.kernels.parts import Parts, sum_parts
from engine.cuda.kernels.rope import rope_write
from engine.cuda.plan.layout import Layout
from engine.cuda.plan.plan import Plan
from engine.cuda.weights import LayerWeights, Matrix, Norm
from engine.kv.arena import KVLayer


@dataclass(frozen=True, slots=True)
class StepOnDevice:
    """What the layers read of a step."""

    plan: Tensor  # int32, as ``layout`` lays it out
    layout: Layout
    partials: Partials
    pieces: tuple[range, ...]  # key heads that attend at once: for all together the partials may be large
    programs: tuple[int, ...]  # of ``attend``, for every window of the layout

    @classmethod
    def of(cls, plan: Plan, ints: Tensor, heads: Heads, partial_bytes: int) -> StepOnDevice:
        """A plan whose ``ints`` are on the device, with memory of its own.

        Partials take at most ``partial_bytes``, or what those of a key head take: heads then attend piece by piece.
        """
        one = Partials.bytes_of(plan.n_partials, heads.n_heads // heads.n_kv_heads, heads.head_dim)
        size = min(heads.n_kv_heads, max(1, partial_bytes // max(1, one)))
        while heads.n_kv_heads % size:
            size -= 1
        pieces = tuple(range(first, first + size) for first in range(0, heads.n_kv_heads, size))
        n_heads = heads.n_heads // heads.n_kv_heads * size
        partials = Partials.empty(plan.n_partials, n_heads, heads.head_dim, ints.device)
        programs = tuple(min(max(1, PROGRAMS // size), n) for n in plan.n_items)
        return cls(ints, plan.layout, partials, pieces, programs)


@dataclass(frozen=True, slots=True)
class Stream:
    """The residual stream ``[n_rows, hidden]``; ``added``, which may be in parts, is not yet part of it.

    What is added is rounded to the stream's dtype wherever that happens: in a norm, in a product or in ``sum``.
    """

    hidden: Tensor
    added: Tensor | Parts | None = None

    @classmethod
    def into(cls, layer: LayerWeights, rows: Tensor) -> Stream:
        """Rows on their way into a stage, as a layer like its first would leave them: with 0 to be added.

        The first norm is then the same program in every stage. One that adds other parts, or none, is compiled apart,
        perhaps with another order of summation.
        """
        if layer.behind_mlp is not None:
            return cls(rows, torch.zeros_like(rows))
        n_parts = parts_of(layer.down.weight)
        if n_parts == 1:
            return cls(rows)
        return cls(rows, Parts(rows.new_zeros(n_parts * len(rows), rows.shape[1], dtype=torch.float32), n_parts))

    def sum(self) -> Tensor:
        """The stream as a stage hands it on."""
        if isinstance(self.added, Parts):
            out = torch.empty_like(self.hidden)
            sum_parts(self.added, out, self.hidden)
            return out
        return self.hidden if self.added is None else self.hidden + self.added


def run_layer(
    layer: LayerWeights,
    stream: Stream,
    step: StepOnDevice,
    arena: KVLayer,
    told_queries: Callable[[Tensor], None] | None = None,
) -> Stream:
    """One layer; the tensors of ``stream`` are changed.

    Args:
        layer: its weights.
        stream: what it reads.
        step: who sees whom.
        arena: the layer's keys and values; the step's own are written there.
        told_queries: hears the rotated queries ``[n_rows, n_heads * head_dim]``.
    """
    hidden, heads = stream.hidden, layer.heads
    normed = _norm(layer.before_attention, stream)
    qkv = _product(layer.qkv, normed)
    query = hidden.new_empty(len(hidden), heads.n_heads * heads.head_dim)
    rope_write(
        qkv,
        step.plan[step.layout.positions],
        step.plan[step.layout.slots],
        layer.frequencies,
        query,
        arena.keys,
        arena.values,
        heads=heads.n_heads,
        kv_heads=heads.n_kv_heads,
        head_dim=heads.head_dim,
        q_norm=None if layer.q_norm is None else layer.q_norm.weight,
        k_norm=None if layer.k_norm is None else layer.k_norm.weight,
        eps=layer.before_mlp.eps if layer.q_norm is None else layer.q_norm.eps,
        offset=0.0 if layer.q_norm is None else layer.q_norm.offset,
        attention_scaling=layer.rope_scaling,
    )
    if told_queries is not None:
        told_queries(query)
    stream = _add(layer.attention_out, attended(query, arena, step, heads), hidden, layer.behind_attention)
    gate_up = _product(layer.gate_up, _norm(layer.before_mlp, stream))
    active = hidden.new_empty(len(hidden), gate_up.values.shape[1] // 2)
    gated(gate_up, active, layer.activation)
    return _add(layer.down, active, hidden, layer.behind_mlp)


def attended(query: Tensor, arena: KVLayer, step: StepOnDevice, heads: Heads) -> Tensor:
    """What rows attend to ``[n_rows, n_heads * head_dim]``, of rotated queries of that shape; keys are in the arena."""
    programs, found = step.programs[step.layout.place(heads.window)], torch.empty_like(query)
    for some in step.pieces:
        attend(query, arena.keys, arena.values, step.plan, step.layout, heads, some, step.partials, programs)
        combine(step.partials, step.plan, step.layout, heads, some, found)
    return found


def _product(matrix: Matrix, rows: Tensor) -> Parts:
    return multiply(rows, matrix.weight, bias=matrix.bias, scales=matrix.scales)


def _norm(norm: Norm, stream: Stream) -> Tensor:
    """The norm of the stream, to which it adds what is to be added."""
    out = torch.empty_like(stream.hidden)
    if stream.added is None:
        rms_norm(stream.hidden, norm.weight, out, norm.eps, offset=norm.offset)
    else:
        rms_norm(stream.added, norm.weight, out, norm.eps, residual=stream.hidden, offset=norm.offset)
    return out


def _add(matrix: Matrix, rows: Tensor, hidden: Tensor, behind: Norm | None) -> Stream:
    """``hidden`` and a product, which is normalised first where the family does so."""
    if behind is not None:
        added = torch.empty_like(hidden)
        rms_norm(_product(matrix, rows), behind.weight, added, behind.eps, offset=behind.offset)
        return Stream(hidden, added)
    if parts_of(matrix.weight) > 1:
        return Stream(hidden, _product(matrix, rows))
    linear(rows, matrix.weight, hidden, bias=matrix.bias, scales=matrix.scales, residual=hidden)
    return Stream(hidden)
