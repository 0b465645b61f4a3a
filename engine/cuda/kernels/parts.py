"""Products in parts: what a split product leaves, and how the kernel that needs it next reads it.

Where a weight has few outputs its inputs are split, so that all multiprocessors read (``gemm``). The kernels that need
the sums make them: norm, rotary embedding and activation add the parts as they load, in ascending order, which saves
a launch. How many parts there are is decided by the weight's shape alone, so a kernel at its place in a layer is the
same in every step.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Parts:
    """A product of ``n_parts`` parts, 1: it is finished."""

    values: Tensor  # [n_rows, n_out], or fp32 [n_parts * n_rows, n_out], one part's rows behind another's
    n_parts: int = 1

    @classmethod
    def of(cls, product: Tensor | Parts) -> Parts:
        """A product that may be finished, as one that may not."""
        return product if isinstance(product, Parts) else cls(product)

    @property
    def n_rows(self) -> int:
        """Rows of the product."""
        return len(self.values) // self.n_parts


@triton.jit  # type: ignore[untyped-decorator]
def read(  # type: ignore[no-untyped-def]  # Triton resolves annotations, and knows only its own
    values, rows, outs, inside, n_rows, stride, parts: tl.constexpr, dtype: tl.constexpr
):
    """Numbers of a product in ``dtype``, which a finished one has: rows (int64) and outputs, broadcast."""
    total = tl.load(values + rows * stride + outs, mask=inside, other=0.0)
    for part in tl.static_range(1, parts):
        total += tl.load(values + (part * n_rows + rows) * stride + outs, mask=inside, other=0.0)
    return total.to(dtype)


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def _sum_parts(  # type: ignore[no-untyped-def]
    values,
    residual,
    out,
    n_rows,
    n_out,
    stride,
    out_stride,
    residual_stride,
    parts: tl.constexpr,
    has_residual: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
):
    rows = (tl.program_id(0) * block_m + tl.arange(0, block_m)).to(tl.int64)[:, None]
    outs = (tl.program_id(1) * block_n + tl.arange(0, block_n))[None, :]
    inside = (rows < n_rows) & (outs < n_out)
    dtype: tl.constexpr = out.dtype.element_ty
    total = read(values, rows, outs, inside, n_rows, stride, parts, dtype)
    if has_residual:
        before = tl.load(residual + rows * residual_stride + outs, mask=inside, other=0.0).to(tl.float32)
        total = (before + total.to(tl.float32)).to(dtype)
    tl.store(out + rows * out_stride + outs, total, mask=inside)


def sum_parts(product: Parts, out: Tensor, residual: Tensor | None = None) -> None:
    """``out = product``, or ``residual +`` that, rounded first.

    Args:
        product: in any number of parts.
        out: ``[rows, n_out]``, rows contiguous, of any float dtype; may be ``residual``.
        residual: ``[rows, n_out]`` of the dtype of ``out``.
    """
    n_rows, n_out = out.shape
    if not n_rows:
        return
    before = out if residual is None else residual
    _sum_parts[(triton.cdiv(n_rows, 16), triton.cdiv(n_out, 128))](
        product.values,
        before,
        out,
        n_rows,
        n_out,
        product.values.stride(0),
        out.stride(0),
        before.stride(0),
        product.n_parts,
        residual is not None,
        16,
        128,
        num_warps=4,
        enable_fp_fusion=False,
    )
