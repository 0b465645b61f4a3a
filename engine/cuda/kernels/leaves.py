"""Sums of products in a fixed order: leaves of the inputs, added as a binary tree.

The inputs of a product are cut into leaves of equal size. A leaf is summed in ascending order. Leaves are added in
pairs, the pairs in pairs, and so on: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). The order depends on the number of
leaves alone. So programs, or GPUs that each hold some of the leaves, can share a sum without changing a bit.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.kernels.launch import await_previous, launch_options

_ROWS, _OUTPUTS = 4, 256  # of a program


@triton.jit  # type: ignore[untyped-decorator]
def add_tree(  # type: ignore[no-untyped-def]  # Triton resolves annotations, and knows only its own
    values, rows, outs, inside, n_rows, stride, first: tl.constexpr, parts: tl.constexpr
):
    """The fp32 sum, as a binary tree, of ``parts`` parts of ``values`` from ``first`` on, each ``[n_rows, n_out]``."""
    if parts == 1:
        return tl.load(values + (first * n_rows + rows) * stride + outs, mask=inside, other=0.0)
    else:  # noqa: RET505  # Triton compiles only the branch that a constant chooses
        half: tl.constexpr = parts // 2
        left = add_tree(values, rows, outs, inside, n_rows, stride, first, parts - half)
        right = add_tree(values, rows, outs, inside, n_rows, stride, first + parts - half, half)
        return left + right


@triton.jit  # type: ignore[untyped-decorator]
def finish(  # type: ignore[no-untyped-def]
    total,
    rows,
    outs,
    inside,
    scales,
    bias,
    residual,
    residual_stride,
    has_scales: tl.constexpr,
    has_bias: tl.constexpr,
    has_residual: tl.constexpr,
    dtype: tl.constexpr,
):
    """A complete sum in ``dtype``: scaled, with its bias, rounded, and added to the residual stream."""
    if has_scales:
        total *= tl.load(scales + outs, mask=inside, other=0.0)
    if has_bias:
        total += tl.load(bias + outs, mask=inside, other=0.0).to(tl.float32)
    result = total.to(dtype)
    if has_residual:
        before = tl.load(residual + rows * residual_stride + outs, mask=inside, other=0.0).to(tl.float32)
        result = (before + result.to(tl.float32)).to(dtype)
    return result


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def _add_leaves(  # type: ignore[no-untyped-def]
    values,
    scales,
    bias,
    residual,
    out,
    n_rows,
    n_out,
    stride,
    out_stride,
    residual_stride,
    parts: tl.constexpr,
    has_scales: tl.constexpr,
    has_bias: tl.constexpr,
    has_residual: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    overlaps: tl.constexpr,
):
    await_previous(overlaps)
    rows = (tl.program_id(0) * block_m + tl.arange(0, block_m)).to(tl.int64)[:, None]
    outs = (tl.program_id(1) * block_n + tl.arange(0, block_n))[None, :]
    inside = (rows < n_rows) & (outs < n_out)
    total = add_tree(values, rows, outs, inside, n_rows, stride, 0, parts)
    dtype: tl.constexpr = out.dtype.element_ty
    extras = (scales, bias, residual)
    result = finish(total, rows, outs, inside, *extras, residual_stride, has_scales, has_bias, has_residual, dtype)
    tl.store(out + rows * out_stride + outs, result, mask=inside)


def add_leaves(
    sums: Tensor,
    out: Tensor,
    *,
    scales: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    overlaps: bool = False,
) -> None:
    """Write ``tree(sums) * scales + bias``, rounded once, or ``residual +`` that, to ``out``.

    Args:
        sums: fp32 ``[n_parts * rows, n_out]``, one part's rows after another's.
        out: ``[rows, n_out]``, rows contiguous, of any float dtype; may be ``residual``.
        scales: fp32 ``[n_out]``.
        bias: ``[n_out]``.
        residual: ``[rows, n_out]`` of the dtype of ``out``.
        overlaps: the kernel may start before the previous one ends, and waits for it (``launch_options``).
    """
    n_rows, n_out = out.shape
    extras = [out if extra is None else extra for extra in (scales, bias, residual)]
    _add_leaves[(triton.cdiv(n_rows, _ROWS), triton.cdiv(n_out, _OUTPUTS))](
        sums,
        *extras,
        out,
        n_rows,
        n_out,
        sums.stride(0),
        out.stride(0),
        extras[2].stride(0),
        len(sums) // n_rows,
        *(extra is not None for extra in (scales, bias, residual)),
        _ROWS,
        _OUTPUTS,
        overlaps,
        **launch_options(4, overlaps),
    )
