"""RMS norm of rows, with or without the residual stream, rounded where Hugging Face's modules round.

One program takes a whole row, so the row's width alone decides the order of its sum.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.kernels.launch import await_previous, launch_options
from engine.cuda.operands import Norm


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def _rms_norm(  # type: ignore[no-untyped-def]  # Triton resolves annotations, and knows only its own
    x,
    weight,
    out,
    residual,
    n_rows,
    x_stride,
    out_stride,
    residual_stride,
    width,
    eps,
    offset,
    adds: tl.constexpr,
    is_gemma: tl.constexpr,
    block: tl.constexpr,
    overlaps: tl.constexpr,
):
    await_previous(overlaps)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    inside = at < width
    values = tl.load(x + row * x_stride + at, mask=inside, other=0.0)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / width + eps)
    factors = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    wide *= scale
    normed = wide * (offset + factors) if is_gemma else wide.to(values.dtype).to(tl.float32) * factors
    result = normed.to(out.dtype.element_ty)
    if adds:
        before = tl.load(residual + row * residual_stride + at, mask=inside, other=0.0)
        result = (before.to(tl.float32) + result.to(tl.float32)).to(before.dtype)
    tl.store(out + row * out_stride + at, result, mask=inside)


def rms_norm(x: Tensor, norm: Norm, out: Tensor, *, residual: Tensor | None = None, overlaps: bool = False) -> None:
    """Normalise rows: ``out = norm(x)``, or ``out = residual + norm(x)``, where ``norm(x)`` is rounded first.

    Sums are fp32. As in Llama's and Qwen's modules a normalised row is rounded to its dtype, then multiplied by the
    weight. With an offset, as in Gemma's, it is multiplied by ``offset + weight`` in fp32 and rounded once.

    Args:
        x: ``[rows, width]`` of the dtype of ``out``, rows contiguous.
        norm: its weight is ``[width]``.
        out: ``[rows, width]``; may be ``x`` or ``residual``.
        residual: ``[rows, width]`` of the dtype of ``out``.
        overlaps: the kernel may start before the previous one ends, and waits for it (``launch_options``).
    """
    n_rows, width = out.shape
    if not n_rows:
        return
    block, before = triton.next_power_of_2(width), out if residual is None else residual
    _rms_norm[(n_rows,)](
        x,
        norm.weight,
        out,
        before,
        n_rows,
        *(rows.stride(0) for rows in (x, out, before)),
        width,
        norm.eps,
        norm.offset,
        residual is not None,
        norm.offset != 0.0,
        block,
        overlaps,
        **launch_options(min(16, max(1, block // 512)), overlaps),
    )
