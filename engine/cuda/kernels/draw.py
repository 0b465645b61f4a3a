"""Draws tokens from logits on the device, all rows at once: the tokens that ``sampling.draw`` draws on a CPU.

Three launches: the best score of every chunk of a row; the best score plus noise, where a row is not greedy; the best
of the chunks. Equal scores go to the lowest id. With a ``Truncation``, ``truncation`` finds between the first and the
second which ids can be drawn.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.kernels.scores import BLOCK, NONE, Scored, best_of, gumbel, packed, packed_id, packed_value, scores_of
from engine.cuda.kernels.truncation import Floors, Truncation, floors

_REACH = tl.constexpr(26.52)  # ``GUMBEL_RANGE``, and room for rounding: noise lifts no id over a better one by more


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def _best_chunks(  # type: ignore[no-untyped-def]  # Triton resolves annotations, and knows only its own
    logits,
    mask,
    temperatures,
    best,
    vocab,
    n_rows,
    n_chunks,
    stride,
    mask_stride,
    has_mask: tl.constexpr,
    size: tl.constexpr,
    block: tl.constexpr,
):
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + row)
    if temperature >= 0.0:
        found = tl.full((block,), NONE, tl.int64)
        for first in range(0, tl.minimum(size, vocab - chunk * size), block):
            ids = chunk * size + first + tl.arange(0, block)
            scores = scores_of(logits, mask, temperature, row, ids, vocab, stride, mask_stride, has_mask)
            found = tl.maximum(found, packed(scores, ids, ids < vocab))
        tl.store(best + row * n_chunks + chunk, tl.max(found, axis=0))


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def _draw_chunks(  # type: ignore[no-untyped-def]
    logits,
    mask,
    temperatures,
    keys,
    floor_values,
    floor_ids,
    best,
    drawn,
    vocab,
    n_rows,
    n_chunks,
    stride,
    mask_stride,
    has_mask: tl.constexpr,
    has_floors: tl.constexpr,
    size: tl.constexpr,
    block: tl.constexpr,
    block_c: tl.constexpr,
):
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + row)
    if temperature > 0.0:
        least = packed_value(best_of(best, row, n_chunks, block_c)) - _REACH
        low = tl.load(keys + row).to(tl.uint32)
        high = tl.load(keys + n_rows + row).to(tl.uint32)
        found = tl.full((block,), NONE, tl.int64)
        for first in range(0, tl.minimum(size, vocab - chunk * size), block):
            ids = chunk * size + first + tl.arange(0, block)
            inside = ids < vocab
            scores = scores_of(logits, mask, temperature, row, ids, vocab, stride, mask_stride, has_mask)
            if has_floors:
                value, last = tl.load(floor_values + row), tl.load(floor_ids + row)
                inside &= (scores > value) | ((scores == value) & (ids <= last))
            if tl.max(scores, axis=0) >= least:
                found = tl.maximum(found, packed(scores + gumbel(ids, low, high), ids, inside))
        tl.store(drawn + row * n_chunks + chunk, tl.max(found, axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def _pick(temperatures, best, drawn, out, vocab, n_chunks, out_stride, block_c: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    greedy = packed_id(best_of(best, row, n_chunks, block_c))
    if temperature > 0.0:
        token = packed_id(best_of(drawn, row, n_chunks, block_c))
        # With a logit that is no number none is near the best one. A token beyond the table would be read as a row.
        tl.store(out + row * out_stride, tl.where(token < vocab, token, greedy))
    elif temperature == 0.0:
        tl.store(out + row * out_stride, greedy)


def draw(
    logits: Tensor,
    temperatures: Tensor,
    keys: Tensor,
    out: Tensor,
    *,
    mask: Tensor | None = None,
    truncation: Truncation | None = None,
) -> None:
    """Draw a token from every row: an exact sample of ``softmax(logits / temperature)``, or the argmax.

    Integers of the noise are those of ``sampling.noise``; its fp64 logarithms may differ from NumPy's by a last bit,
    which changes one fp32 value of noise in 2**28 by a step. Bias and penalties are applied to the logits before.

    Args:
        logits: ``[rows, vocab]``, any float dtype, rows contiguous; not changed.
        temperatures: fp32 ``[rows]``, 0 for greedy rows, which need neither noise nor truncation; rows below 0 are not
            drawn from.
        keys: ``sampling.noise.gumbel_keys`` of the rows, or their low 32 bits as int32, ``[2, rows]``; anything for
            greedy rows.
        out: int32 ``[rows]``; left as it is where nothing is drawn.
        mask: what a grammar allows, bits of int32 ``[rows, ceil(vocab / 32)]``, the lowest bit the lowest id.
        truncation: top-k, top-p and min-p of every row; greedy rows are not concerned.
    """
    if not len(logits):
        return
    rows = Scored(logits, temperatures, mask)
    best, drawn = (torch.empty(rows.grid, dtype=torch.int64, device=logits.device) for _ in range(2))
    _best_chunks[rows.grid](
        *rows.tensors, best, *rows.sizes, rows.has_mask, rows.chunk, BLOCK, num_warps=4, enable_fp_fusion=False
    )
    allowed = None if truncation is None else floors(rows, best, truncation)
    arguments = (keys, *(allowed or Floors(temperatures, out)), best, drawn)
    rows.launch(_draw_chunks, arguments, (allowed is not None,), num_warps=8)
    sizes = logits.shape[1], rows.grid[1], out.stride(0), rows.block_c
    _pick[(len(logits),)](temperatures, best, drawn, out, *sizes, num_warps=1, enable_fp_fusion=False)
