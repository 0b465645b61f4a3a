"""Finds the best ids of rows of logits, in falling order, with their log-probabilities and that of one more token.

The same two launches compute the logarithm of a row's sum of exponentials: every chunk of ids is summed up relative to
its own best one, and the chunks in an order that the vocabulary alone decides.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.kernels.scores import CHUNK, NONE, finite, packed, packed_id, packed_value

MOST = 64  # ids of a row


@triton.jit  # type: ignore[untyped-decorator]
def _best_in_chunks(  # type: ignore[no-untyped-def]  # Triton resolves annotations, and knows only its own
    logits, asked, found, sums, vocab, n_chunks, stride, n: tl.constexpr, size: tl.constexpr
):
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(asked + row) >= -1:
        ids = chunk * size + tl.arange(0, size)
        inside = ids < vocab
        numbers = tl.load(logits + row * stride + ids, mask=inside, other=float("-inf")).to(tl.float32)
        left = packed(numbers, ids, inside)
        top = finite(packed_value(tl.max(left, axis=0)))
        tl.store(sums + row * n_chunks + chunk, tl.sum(tl.exp(numbers - top), axis=0))
        for i in range(n):
            best = tl.max(left, axis=0)
            tl.store(found + (row * n_chunks + chunk) * n + i, best)
            left = tl.where(left == best, NONE, left)


@triton.jit  # type: ignore[untyped-decorator]
def _best_of_chunks(  # type: ignore[no-untyped-def]
    logits,
    asked,
    drawn,
    found,
    sums,
    out_ids,
    out_logprobs,
    out_asked,
    vocab,
    n_chunks,
    stride,
    drawn_stride,
    ids_stride,
    logprobs_stride,
    asked_stride,
    n: tl.constexpr,
    block: tl.constexpr,
    block_c: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(asked + row).to(tl.int64)
    if token >= -1:
        if token == -1:
            token = tl.load(drawn + row * drawn_stride).to(tl.int64)
        chunk, at = tl.arange(0, block_c), tl.arange(0, block)
        left = tl.load(found + row * n_chunks * n + at, mask=at < n_chunks * n, other=NONE)
        firsts = found + (row * n_chunks + chunk) * n
        tops = finite(packed_value(tl.load(firsts, mask=chunk < n_chunks, other=NONE)))
        top = finite(packed_value(tl.max(left, axis=0)))
        of_chunks = tl.load(sums + row * n_chunks + chunk, mask=chunk < n_chunks, other=0.0)
        weights = tl.where(of_chunks > 0.0, of_chunks * tl.exp(tops - top), 0.0)
        total = top + tl.log(tl.sum(weights, axis=0))
        number = tl.load(logits + row * stride + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
        tl.store(out_asked + row * asked_stride, number - total)
        for i in range(n):
            best = tl.max(left, axis=0)
            tl.store(out_ids + row * ids_stride + i, packed_id(best))
            tl.store(out_logprobs + row * logprobs_stride + i, packed_value(best) - total)
            left = tl.where(left == best, NONE, left)


def best_ids(
    logits: Tensor, n: int, asked: Tensor, drawn: Tensor, out_ids: Tensor, out_logprobs: Tensor, out_asked: Tensor
) -> None:
    """Write the ``n`` best ids of rows, best first, the lower id first among equal ones, and log-probabilities.

    Args:
        logits: ``[rows, vocab]``, any float dtype, rows contiguous.
        n: from 1 to ``MOST``, at most the vocabulary.
        asked: a token of every row whose log-probability is written, int32 ``[rows]``; -1: that in ``drawn``; -2: the
            row is neither read nor written. A token outside the vocabulary (drawn from NaN logits): -inf.
        drawn: int32 ``[rows]``.
        out_ids: int32 ``[rows, n]``, rows contiguous, as below.
        out_logprobs: fp32 ``[rows, n]``.
        out_asked: log-probabilities of the tokens asked for, fp32 ``[rows]``.

    Raises:
        ValueError: ``n`` is another.
    """
    n_rows, vocab = logits.shape
    if not 1 <= n <= min(MOST, vocab):
        raise ValueError(f"{n} best ids are asked for; it must be from 1 to {min(MOST, vocab)}")
    n_chunks = triton.cdiv(vocab, CHUNK)
    if not n_rows:
        return
    found = torch.empty((n_rows, n_chunks * n), dtype=torch.int64, device=logits.device)
    sums = torch.empty((n_rows, n_chunks), dtype=torch.float32, device=logits.device)
    _best_in_chunks[(n_rows, n_chunks)](
        logits, asked, found, sums, vocab, n_chunks, logits.stride(0), n, CHUNK, num_warps=4, enable_fp_fusion=False
    )
    strides = (tensor.stride(0) for tensor in (logits, drawn, out_ids, out_logprobs, out_asked))
    blocks = triton.next_power_of_2(n_chunks * n), triton.next_power_of_2(n_chunks)
    arrays = logits, asked, drawn, found, sums, out_ids, out_logprobs, out_asked
    _best_of_chunks[(n_rows,)](*arrays, vocab, n_chunks, *strides, n, *blocks, num_warps=8, enable_fp_fusion=False)
