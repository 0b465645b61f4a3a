"""Arena rows copied to other rows: how the accepted path of a tree becomes committed context."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

MOST_MOVES = 1024
_CELLS = 8192  # that a program holds


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
    """Copy rows of keys and values, of one layer or of all, in one launch; every source is read as it was before.

    A source may be the destination of another move: a program owns some columns of the arena for itself, holds them of
    all sources in registers and passes a barrier before it writes the first destination, so no order of moves matters.

    Args:
        k_arena: ``[n_slots, kv_heads, head_dim]``, or ``[n_layers, n_slots, kv_heads, head_dim]``; rows contiguous.
        v_arena: likewise.
        sources: int32 or int64 ``[n]``; -1: nothing moves.
        destinations: likewise; none twice, unless from one source. A row moved to itself changes nothing.

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
    block_n = triton.next_power_of_2(n)
    block_w = min(triton.next_power_of_2(k.shape[2]), max(8, _CELLS // block_n), 256)
    _move_rows[(triton.cdiv(k.shape[2], block_w), k.shape[0])](
        k,
        v,
        sources,
        destinations,
        n,
        k.shape[2],
        k.stride(0),
        v.stride(0),
        k.stride(1),
        v.stride(1),
        block_n,
        block_w,
        num_warps=8,
        enable_fp_fusion=False,
    )
