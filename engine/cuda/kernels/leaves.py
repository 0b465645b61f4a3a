"""Sums of products in a fixed order: leaves of the inputs, added as a binary tree.

The inputs of a product are cut into leaves of equal size. A leaf is summed in ascending order. Leaves are added in
pairs, the pairs in pairs, and so on: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)). The order depends on the number of
leaves alone. So programs, or GPUs that each hold some of the leaves, can share a sum without changing a bit.

If a weight has scale groups, a leaf sums each group from zero, multiplies that sum by the group's scale, and adds it to
the leaf's sum, in ascending order of groups. A group that lies in two leaves has a sum in each.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.kernels.launch import await_previous, launch_options
from engine.model.matrices.groups import CENTRE

_CENTRE = tl.constexpr(CENTRE)
_ROWS, _OUTPUTS = 4, 256  # of a program


@triton.jit  # type: ignore[untyped-decorator]
def sum_leaves(  # type: ignore[no-untyped-def]  # Triton resolves annotations, and knows only its own
    x_at,
    weight_at,
    scales_at,
    zeros_at,
    in_rows,
    in_outs,
    n_in,
    leaf_size,
    skipped,
    first,
    leaves: tl.constexpr,
    group: tl.constexpr,
    is_packed: tl.constexpr,
    has_zeros: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
):
    """The sum of ``leaves`` leaves from ``first`` on, fp32 ``[block_n, block_m]``."""
    if leaves == 1:
        total = tl.zeros((block_n, block_m), dtype=tl.float32)
        if group > 0:
            begin = first * leaf_size + skipped
            end = tl.minimum((first + 1) * leaf_size, n_in) + skipped
            in_leaf = (in_rows, in_outs, begin, end, skipped)
            for number in range(begin // group, tl.cdiv(end, group)):
                part = _sum_group(x_at, weight_at, zeros_at, *in_leaf, number, group, is_packed, has_zeros)
                scale = tl.load(scales_at + number, mask=in_outs, other=0.0).to(tl.float32)
                total += part * scale[:, None]
        else:
            end = tl.minimum((first + 1) * leaf_size, n_in)
            for at in range(first * leaf_size, end, block_k):
                inputs = at + tl.arange(0, block_k)
                inside = inputs < end
                left = tl.load(weight_at + inputs[None, :], mask=in_outs[:, None] & inside[None, :], other=0.0)
                right = tl.load(x_at + inputs[:, None], mask=in_rows[None, :] & inside[:, None], other=0.0)
                total = tl.dot(left.to(right.dtype), right, total, input_precision="ieee")  # which bf16 ignores
        return total
    else:  # noqa: RET505  # Triton compiles only the branch that a constant chooses
        half: tl.constexpr = leaves // 2
        whole = (x_at, weight_at, scales_at, zeros_at, in_rows, in_outs, n_in, leaf_size, skipped)
        one = sum_leaves(*whole, first, half, group, is_packed, has_zeros, block_m, block_n, block_k)
        two = sum_leaves(*whole, first + half, half, group, is_packed, has_zeros, block_m, block_n, block_k)
        return one + two


@triton.jit  # type: ignore[untyped-decorator]
def _sum_group(  # type: ignore[no-untyped-def]
    x_at,
    weight_at,
    zeros_at,
    in_rows,
    in_outs,
    begin,
    end,
    skipped,
    number,
    group: tl.constexpr,
    is_packed: tl.constexpr,
    has_zeros: tl.constexpr,
):
    """The sum of a group's inputs from ``begin`` to ``end - 1``, without its scale. Other inputs are read as 0."""
    width: tl.constexpr = group // 2 if is_packed else group
    places = tl.arange(0, width)
    inputs = number * group + places
    stored = tl.load(weight_at + (number * width + places)[None, :], mask=in_outs[:, None], other=0.0)
    inside = in_rows[None, :] & ((inputs >= begin) & (inputs < end))[:, None]
    right = tl.load(x_at + (inputs - skipped)[:, None], mask=inside, other=0.0)
    zero = tl.load(zeros_at + number, mask=in_outs, other=0).to(tl.float32)[:, None] if has_zeros else None
    if is_packed:
        part = tl.dot(_widen_halves(stored & 15, zero, right.dtype, has_zeros), right, input_precision="ieee")
        inputs += width
        inside = in_rows[None, :] & ((inputs >= begin) & (inputs < end))[:, None]
        right = tl.load(x_at + (inputs - skipped)[:, None], mask=inside, other=0.0)
        left = _widen_halves(stored >> 4, zero, right.dtype, has_zeros)
        return tl.dot(left, right, part, input_precision="ieee")
    else:  # noqa: RET505  # Triton compiles only the branch that a constant chooses
        left = stored.to(right.dtype)
        if has_zeros:
            # Both are integers, and so is their difference of at most 256, which every dtype holds.
            left -= zero.to(right.dtype)  # type: ignore[union-attr]
        return tl.dot(left, right, input_precision="ieee")


@triton.jit  # type: ignore[untyped-decorator]
def _widen_halves(halves, zero, dtype: tl.constexpr, has_zeros: tl.constexpr):  # type: ignore[no-untyped-def]
    """``halves - CENTRE - zero`` in ``dtype``, exactly; ``halves`` are 0 to 15.

    They become the low bits of 128 (bf16) or 1024 (fp16), which is faster than a conversion.
    """
    offset: tl.constexpr = _CENTRE + (128.0 if dtype == tl.bfloat16 else 1024.0 if dtype == tl.float16 else 0.0)
    if dtype == tl.bfloat16:
        number = (halves.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True)
    elif dtype == tl.float16:
        number = (halves.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True)
    else:
        number = halves.to(dtype)
    if has_zeros:
        return number - (zero + offset).to(dtype)
    return number - offset


@triton.jit  # type: ignore[untyped-decorator]
def add_tree(  # type: ignore[no-untyped-def]
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
