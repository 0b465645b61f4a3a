"""The second half of attention: merges the partial softmaxes of each row, from its first split to its last."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.kernels.attention import Partials
from engine.cuda.kernels.launch import await_previous, launch_options
from engine.cuda.operands import Heads
from engine.cuda.plan.layout import HEADER, PlanLayout

_HEADS = 8  # of a program
_STAGES = 4  # of the pipeline: partials of three splits are copied while one is merged


@triton.jit(do_not_specialize=["n_rows", "first_head", "part_heads"])  # type: ignore[untyped-decorator]
def _combine(  # type: ignore[no-untyped-def]
    sums,
    largest,
    weights,
    plan,
    out,  # [n_rows, n_heads, head_dim]
    n_rows,
    first_head,  # of the partials
    part_heads,  # that they have
    place: tl.constexpr,
    window: tl.constexpr,
    n_heads: tl.constexpr,
    head_dim: tl.constexpr,
    block_h: tl.constexpr,
    block_d: tl.constexpr,
    split_size: tl.constexpr,
    stages: tl.constexpr,
    header_ints: tl.constexpr,
    overlaps: tl.constexpr,
):
    await_previous(overlaps)
    row = tl.program_id(0)
    head = tl.program_id(1) * block_h + tl.arange(0, block_h)  # of the partials' heads
    dims = tl.arange(0, block_d)
    is_head = head < part_heads
    inside = is_head[:, None] & (dims < head_dim)[None, :]
    position = tl.load(plan + header_ints + row)
    first = tl.load(plan + header_ints + (2 + place) * n_rows + row)
    n_splits = position // split_size + 1
    if window > 0:
        n_splits = n_splits - tl.maximum(position - window + 1, 0) // split_size
    n_splits = tl.where(first < 0, 0, n_splits)  # a row that fills the bucket
    total = tl.zeros((block_h, block_d), tl.float32)
    most = tl.full((block_h,), float("-inf"), tl.float32)
    weight = tl.zeros((block_h,), tl.float32)
    for split in tl.range(0, n_splits, num_stages=stages):
        at = (first + split).to(tl.int64) * part_heads + head
        split_most = tl.load(largest + at, mask=is_head, other=0.0)
        split_weight = tl.load(weights + at, mask=is_head, other=1.0)
        value = tl.load(sums + at[:, None] * head_dim + dims[None, :], mask=inside, other=0.0)
        more = tl.maximum(most, split_most)
        before = tl.exp2(most - more)
        now = tl.exp2(split_most - more)
        total = total * before[:, None] + value * now[:, None]
        weight = weight * before + split_weight * now
        most = more
    result = tl.where(n_splits > 0, total / tl.where(weight > 0.0, weight, 1.0)[:, None], 0.0)
    tl.store(
        out + (row * n_heads + first_head + head)[:, None] * head_dim + dims[None, :],
        result.to(out.dtype.element_ty),
        inside,
    )


def combine(
    partials: Partials,
    plan: Tensor,
    layout: PlanLayout,
    heads: Heads,
    kv_heads: range,
    out: Tensor,
    *,
    overlaps: bool = False,
) -> None:
    """Write the attention of every row to ``out``: its partials, merged in ascending order of splits.

    Args:
        partials: written by ``attend``.
        plan: int32, as ``layout`` describes it.
        layout: of the plan.
        heads: of the layer.
        kv_heads: key heads of the partials.
        out: ``[n_rows, n_heads * head_dim]``; rows that fill the bucket become 0.
        overlaps: the kernel may start before the previous one ends, and waits for it (``launch_options``).
    """
    n_heads = partials.largest.shape[1]
    _combine[(layout.n_rows, triton.cdiv(n_heads, _HEADS))](
        partials.sums,
        partials.largest,
        partials.weights,
        plan,
        out,
        layout.n_rows,
        kv_heads.start * heads.groups,
        n_heads,
        layout.window_number(heads.window),
        heads.window or 0,
        heads.n_heads,
        heads.head_dim,
        _HEADS,
        max(16, triton.next_power_of_2(heads.head_dim)),
        layout.split,
        _STAGES,
        HEADER,
        overlaps,
        **launch_options(4, overlaps),
    )
