"""Copies of rows: embeddings of tokens, and accepted paths that become committed context."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.kernels.launch import launch_options

MOST_MOVES = 1024
_CELLS = 8192  # that a program holds


@triton.jit  # type: ignore[untyped-decorator]
def _embed(  # type: ignore[no-untyped-def]  # Triton resolves annotations, and knows only its own
    tokens, table, out, width, scale, table_stride, out_stride, block: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    token = tl.load(tokens + row).to(tl.int64)
    values = tl.load(table + token * table_stride + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + at, (values * scale).to(out.dtype.element_ty), mask=inside)


def embed(tokens: Tensor, table: Tensor, out: Tensor, scale: float = 1.0) -> None:
    """Write the rows of ``table`` that belong to ``tokens``, times ``scale``, to ``out``.

    Args:
        tokens: int32 or int64 ``[rows]``, within ``[0, vocab)``.
        table: ``[vocab, width]``, rows contiguous.
        out: ``[rows, width]`` of the table's dtype.
        scale: square root of ``width`` in Gemma, else 1; rounded to the table's dtype first.
    """
    n_rows, width = out.shape
    if not n_rows:
        return
    rounded = torch.tensor(scale, dtype=table.dtype).item()
    block = min(1024, triton.next_power_of_2(width))
    strides = table.stride(0), out.stride(0)
    grid = n_rows, triton.cdiv(width, block)
    _embed[grid](tokens, table, out, width, rounded, *strides, block, **launch_options(4))


@triton.jit(do_not_specialize=["n_moves"])  # type: ignore[untyped-decorator]
def _move_rows(  # type: ignore[no-untyped-def]  # Triton resolves annotations, and knows only its own
    k_arena,
    v_arena,
    sources,
    destinations,
    n_moves,
    width,
    k_layer_stride,
    v_layer_stride,
    k_stride,
    v_stride,
    block_n: tl.constexpr,
    block_w: tl.constexpr,
):
    move = tl.arange(0, block_n)
    source = tl.load(sources + move, mask=move < n_moves, other=-1).to(tl.int64)[:, None]
    destination = tl.load(destinations + move, mask=move < n_moves, other=-1).to(tl.int64)[:, None]
    at = tl.program_id(0) * block_w + tl.arange(0, block_w)
    inside = (source >= 0) & (at < width)[None, :]
    layer = tl.program_id(1).to(tl.int64)
    keys = k_arena + layer * k_layer_stride + at[None, :]
    values = v_arena + layer * v_layer_stride + at[None, :]
    k = tl.load(keys + source * k_stride, mask=inside)
    v = tl.load(values + source * v_stride, mask=inside)
    tl.debug_barrier()  # every thread of the program has read before any writes
    tl.store(keys + destination * k_stride, k, mask=inside)
    tl.store(values + destination * v_stride, v, mask=inside)


def move_rows(k_arena: Tensor, v_arena: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """Copy rows of keys and values, of one layer or of all, in one launch; all sources are read before any write.

    A source may be the destination of another move. A program owns some columns of the arena, holds those of all
    sources in registers and passes a barrier before its first write, so the order of moves does not matter.

    Args:
        k_arena: ``[n_slots, kv_heads, head_dim]``, or ``[n_layers, n_slots, kv_heads, head_dim]``; rows contiguous.
        v_arena: like ``k_arena``.
        sources: int32 or int64 ``[n]``; -1: nothing moves.
        destinations: like ``sources``; none twice, unless from one source. A row moved to itself changes nothing.

    Raises:
        ValueError: more than ``MOST_MOVES`` rows move.
    """
    n = len(sources)
    if n > MOST_MOVES:
        raise ValueError(f"{n} rows are to move; at most {MOST_MOVES} can at once")
    if not n:
        return
    k, v = (arena.flatten(-2) for arena in (k_arena, v_arena))  # views: a row's heads lie together
    if k.ndim == 2:
        k, v = k[None], v[None]
    n_layers, _, width = k.shape
    block_n = triton.next_power_of_2(n)
    block_w = min(triton.next_power_of_2(width), max(8, _CELLS // block_n), 256)
    strides = k.stride(0), v.stride(0), k.stride(1), v.stride(1)
    grid = triton.cdiv(width, block_w), n_layers
    _move_rows[grid](k, v, sources, destinations, n, width, *strides, block_n, block_w, **launch_options(8))
