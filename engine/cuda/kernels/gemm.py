"""Matrix products whose every row depends on that row alone: one order of summation, whatever the number of rows.

A sum over the inputs runs in blocks of fixed size, ascending. Where outputs are few, the inputs are split into parts
that the weight's shape alone decides, so that all multiprocessors read; the next kernel adds them up (``parts``).
Rows are taken in tiles of 64, the last one filled up with zeros. The weight is the left factor: Hopper's wgmma takes it
from registers, where weights of one byte are converted, and the rows from shared memory.

Weights of one byte (int8, or fp8 e4m3) are converted to the dtype of the rows, which is exact, and every sum is scaled
once, when it is complete; rows are not quantised.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.kernels.parts import Parts, sum_parts

BLOCK_M = 64  # rows of a tile, always: fewer would be multiplied by other instructions
LEAST_PROGRAMS = 160  # that read a weight, if it can be cut so small: an H100 or H200 has 132 multiprocessors
MOST_PARTS = 8
LEAST_INPUTS = 512  # of a part
MOST_ROWS = 1024  # whose parts are in memory at once: a few hundred MB of fp32
_WIDE = 48 * 128  # outputs from which on tiles are 128 wide: rows are read once for twice as many outputs


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a weight is cut up: a function of its shape and dtype, the same on every device.

    Args:
        block_n: outputs of a tile.
        block_k: inputs that are multiplied at a time: 64, or 128 of one byte each.
        parts: of the inputs, each summed by itself.
    """

    block_n: int
    block_k: int
    parts: int


def tiling(n_out: int, n_in: int, dtype: torch.dtype) -> Tiling:
    """The tiling of a weight ``[n_out, n_in]``."""
    block_n = 128 if n_out >= _WIDE else 64
    tiles, parts = triton.cdiv(n_out, block_n), 1
    while tiles * parts < LEAST_PROGRAMS and parts < MOST_PARTS and n_in >= 2 * parts * LEAST_INPUTS:
        parts *= 2
    return Tiling(block_n, 128 if dtype.itemsize == 1 else 64, parts)


def parts_of(weight: Tensor) -> int:
    """Parts that a product with a weight is left in."""
    n_out, n_in = weight.shape
    return tiling(n_out, n_in, weight.dtype).parts


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    x,
    weight,
    scales,
    bias,
    residual,
    out,
    n_rows,
    n_out,
    n_in,
    x_stride,
    out_stride,
    residual_stride,
    parts: tl.constexpr,
    has_scales: tl.constexpr,
    has_bias: tl.constexpr,
    has_residual: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
):
    rows = (tl.program_id(0) * block_m + tl.arange(0, block_m)).to(tl.int64)
    outs = (tl.program_id(1) * block_n + tl.arange(0, block_n)).to(tl.int64)
    part = tl.program_id(2)
    in_rows, in_outs = rows < n_rows, outs < n_out
    share = tl.cdiv(tl.cdiv(n_in, block_k), parts) * block_k
    first = part * share
    total = tl.zeros((block_n, block_m), dtype=tl.float32)
    for at in range(first, tl.minimum(first + share, n_in), block_k):
        inputs = at + tl.arange(0, block_k)
        in_inputs = inputs < n_in
        weight_at = weight + outs[:, None] * n_in + inputs[None, :]
        left = tl.load(weight_at, mask=in_outs[:, None] & in_inputs[None, :], other=0.0)
        x_at = x + rows[None, :] * x_stride + inputs[:, None]
        right = tl.load(x_at, mask=in_rows[None, :] & in_inputs[:, None], other=0.0)
        total = tl.dot(left.to(right.dtype), right, total, input_precision="ieee")  # which bf16 ignores
    result = tl.trans(total)
    inside = in_rows[:, None] & in_outs[None, :]
    if has_scales:
        result *= tl.load(scales + outs, mask=in_outs, other=0.0)[None, :]
    if has_bias:  # of the first part: what adds the others up knows of none
        result += tl.load(bias + outs, mask=in_outs & (part == 0), other=0.0).to(tl.float32)[None, :]
    dtype: tl.constexpr = out.dtype.element_ty
    if has_residual:
        before = tl.load(residual + rows[:, None] * residual_stride + outs[None, :], mask=inside, other=0.0)
        result = before.to(tl.float32) + result.to(dtype).to(tl.float32)
    tl.store(out + (part * n_rows + rows[:, None]) * out_stride + outs[None, :], result.to(dtype), mask=inside)


def multiply(x: Tensor, weight: Tensor, *, bias: Tensor | None = None, scales: Tensor | None = None) -> Parts:
    """``x @ weight.T * scales + bias`` in the dtype of ``x``, or in fp32 parts, which the next kernel adds up.

    Args:
        x: ``[rows, n_in]``, bf16, fp16 or fp32, rows contiguous.
        weight: ``[n_out, n_in]``, contiguous, of the dtype of ``x``, int8 or float8_e4m3fn.
        bias: ``[n_out]``.
        scales: fp32 ``[n_out]``, of a weight of one byte.
    """
    n_out, n_parts = len(weight), parts_of(weight)
    dtype = x.dtype if n_parts == 1 else torch.float32
    product = Parts(torch.empty(n_parts * len(x), n_out, dtype=dtype, device=x.device), n_parts)
    _multiply(x, weight, product, scales, bias, None)
    return product


def linear(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None = None,
    scales: Tensor | None = None,
    residual: Tensor | None = None,
) -> None:
    """``out = x @ weight.T * scales + bias``, added up in fp32, or ``out = residual +`` that, rounded first.

    Args:
        x: as ``multiply`` takes it, like weight, bias and scales.
        weight: ``[n_out, n_in]``.
        out: ``[rows, n_out]``, rows contiguous, of any float dtype; may be ``residual``, must not be ``x``.
        bias: ``[n_out]``.
        scales: ``[n_out]``.
        residual: ``[rows, n_out]`` of the dtype of ``out``.
    """
    if parts_of(weight) == 1:
        _multiply(x, weight, Parts(out), scales, bias, residual)
        return
    for first in range(0, len(x), MOST_ROWS):
        some = slice(first, first + MOST_ROWS)
        product = multiply(x[some], weight, bias=bias, scales=scales)
        sum_parts(product, out[some], None if residual is None else residual[some])


def _multiply(
    x: Tensor, weight: Tensor, product: Parts, scales: Tensor | None, bias: Tensor | None, residual: Tensor | None
) -> None:
    (n_rows, n_in), n_out = x.shape, len(weight)
    if not n_rows:
        return
    cut, out = tiling(n_out, n_in, weight.dtype), product.values
    extras = [out if extra is None else extra for extra in (scales, bias, residual)]
    _product[(triton.cdiv(n_rows, BLOCK_M), triton.cdiv(n_out, cut.block_n), cut.parts)](
        x,
        weight,
        *extras,
        out,
        n_rows,
        n_out,
        n_in,
        x.stride(0),
        out.stride(0),
        extras[2].stride(0),
        cut.parts,
        *(extra is not None for extra in (scales, bias, residual)),
        BLOCK_M,
        cut.block_n,
        cut.block_k,
        num_warps=cut.block_n // 16,
        num_stages=4,
        enable_fp_fusion=False,
    )
