"""The embedding of tokens."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


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
    """The rows of ``table`` that belong to ``tokens``, times ``scale``, which is rounded to the table's dtype before.

    Args:
        tokens: int32 or int64 ``[rows]``, within ``[0, vocab)``.
        table: ``[vocab, width]``, rows contiguous.
        out: ``[rows, width]`` of the table's dtype.
        scale: Gemma's square root of ``width``; 1 elsewhere.
    """
    n_rows, width = out.shape
    if not n_rows:
        return
    rounded = torch.tensor(scale, dtype=table.dtype).item()
    block = min(1024, triton.next_power_of_2(width))
    _embed[(n_rows, triton.cdiv(width, block))](
        tokens, table, out, width, rounded, table.stride(0), out.stride(0), block, num_warps=4, enable_fp_fusion=False
    )
