"""The gated activation between the two matrices of an MLP, rounded where Hugging Face's modules round."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.kernels.launch import await_previous, launch_options

KINDS = ("silu", "gelu_tanh")


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def _gated(  # type: ignore[no-untyped-def]  # Triton resolves annotations, and knows only its own
    gate_up,
    out,
    experts,
    n_rows,
    width,
    first,
    n_own,
    gate_up_stride,
    out_stride,
    is_silu: tl.constexpr,
    has_experts: tl.constexpr,
    block: tl.constexpr,
    overlaps: tl.constexpr,
):
    await_previous(overlaps)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    if has_experts:
        expert = tl.load(experts + row)
        inside = inside & (expert >= first) & (expert < first + n_own)
    dtype: tl.constexpr = out.dtype.element_ty
    gate = tl.load(gate_up + row * gate_up_stride + at, mask=inside, other=0.0)
    up = tl.load(gate_up + row * gate_up_stride + width + at, mask=inside, other=0.0)
    x = gate.to(tl.float32)
    # Both are x times a logistic function: (1 + tanh z) / 2 is that of 2 z.
    z = x if is_silu else 2.0 * 0.7978845608028654 * (x + 0.044715 * x * x * x)
    power = tl.exp(-tl.abs(z))  # of numbers that are not positive: nothing overflows
    active = tl.div_rn(x * tl.where(z >= 0.0, 1.0, power), 1.0 + power).to(dtype)
    result = active.to(tl.float32) * up.to(tl.float32)
    tl.store(out + row * out_stride + at, result.to(dtype), mask=inside)


def apply_gate(
    gate_up: Tensor,
    out: Tensor,
    kind: str,
    experts: Tensor | None = None,
    own: range = range(0),
    *,
    overlaps: bool = False,
) -> None:
    """Write ``act(gate) * up`` to ``out``, where ``act(gate)`` is rounded to its dtype first.

    Args:
        gate_up: ``[rows, 2 * width]``, the gate first, of the dtype of ``out``, rows contiguous.
        out: ``[rows, width]``.
        kind: "silu", or Gemma's "gelu_tanh" (GELU by tanh).
        experts: int32 ``[rows]``; only rows whose expert is in ``own`` are read and written. None: all rows are.
        own: numbers of this process's experts.
        overlaps: the kernel may start before the previous one ends, and waits for it (``launch_options``).

    Raises:
        ValueError: ``kind`` is unknown.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}")
    n_rows, width = out.shape
    if not n_rows:
        return
    block = min(1024, triton.next_power_of_2(width))
    _gated[(n_rows, triton.cdiv(width, block))](
        gate_up,
        out,
        out if experts is None else experts,
        n_rows,
        width,
        own.start,
        len(own),
        gate_up.stride(0),
        out.stride(0),
        kind == "silu",
        experts is not None,
        block,
        overlaps,
        **launch_options(4, overlaps),
    )
