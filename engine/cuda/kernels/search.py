"""Finds in every row the largest integer from which on enough ids lie, by their number or by their probability.

Scores become integers of 32 bits of the same order. Eight passes of four bits: a pass sums up, for 16 integers, the
counts or the probabilities of the ids from there on, in chunks of the row, and the next pass continues at the largest
integer whose sum suffices. Sums are fp64, in an order that the vocabulary alone decides.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.kernels.scores import Scored, best_of, finite, key_of, packed_value, scores_of

PASSES = 8
DIGITS = tl.constexpr(16)
_BLOCK = 512  # ids that are summed up at a time, for 16 integers each


@triton.jit  # type: ignore[untyped-decorator]
def weights_of(scores, keys, least, best, is_mass: tl.constexpr):  # type: ignore[no-untyped-def]
    """The weights of ids in a sum, fp64: 1, or a probability up to a factor, and 0 below the key ``least``."""
    if is_mass:
        return tl.where(keys >= least, tl.exp(scores.to(tl.float64) - best), 0.0)
    return tl.where(keys >= least, 1.0, 0.0).to(tl.float64)


@triton.jit  # type: ignore[untyped-decorator]
def found_by(  # type: ignore[no-untyped-def]  # Triton resolves annotations, and knows only its own
    sums, places, limits, row, n_rows, n_chunks, done, vocab, is_mass: tl.constexpr, block_c: tl.constexpr
):
    """The state of a search after ``done`` passes: (int64 key from 0 to 2**32, the sum that it must reach)."""
    chunk = tl.arange(0, block_c)
    digit = tl.arange(0, DIGITS)
    inside = (chunk < n_chunks)[:, None] & (digit >= 0)[None, :]
    cells = sums + (row * n_chunks + chunk[:, None]) * DIGITS + digit[None, :]
    pass_size = (n_rows * n_chunks).to(tl.int64) * DIGITS
    limit = tl.load(limits + row)
    if is_mass:
        of_first = tl.sum(tl.load(cells, mask=inside, other=0.0), axis=0)
        target = limit * tl.max(of_first, axis=0)  # the sum from the least key on is all there is
        is_free = limit >= 1.0
    else:
        is_free = (limit <= 0) | (limit >= vocab)
        target = limit.to(tl.float64)
    of_last = tl.sum(tl.load(cells + (done - 1) * pass_size, mask=inside, other=0.0), axis=0)
    reached = tl.maximum(tl.sum((of_last >= target).to(tl.int32), axis=0) - 1, 0)  # sums fall
    before = tl.load(places + (done - 1) * n_rows + row)
    step = reached.to(tl.int64) << (32 - 4 * done)
    return tl.where(is_free, 0, before + step), target


@triton.jit(do_not_specialize=["n_rows", "done"])  # type: ignore[untyped-decorator]
def _search(  # type: ignore[no-untyped-def]
    logits,
    mask,
    temperatures,
    best,
    limits,
    least,
    sums,
    places,
    done,
    vocab,
    n_rows,
    n_chunks,
    stride,
    mask_stride,
    has_mask: tl.constexpr,
    has_least: tl.constexpr,
    is_mass: tl.constexpr,
    size: tl.constexpr,
    block: tl.constexpr,
    block_c: tl.constexpr,
):
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + row)
    if temperature > 0.0:
        place = tl.zeros((), tl.int64)
        if done > 0:
            place, _ = found_by(sums, places, limits, row, n_rows, n_chunks, done, vocab, is_mass, block_c)
        if chunk == 0:
            tl.store(places + done * n_rows + row, place)
        top = finite(packed_value(best_of(best, row, n_chunks, block_c))).to(tl.float64)
        from_key = tl.zeros((), tl.int64)
        if has_least:
            from_key = tl.load(least + row)
        digit = tl.arange(0, DIGITS)
        bounds = place + (digit.to(tl.int64) << (28 - 4 * done))
        total = tl.zeros((DIGITS,), tl.float64)
        for first in range(0, tl.minimum(size, vocab - chunk * size), block):
            ids = chunk * size + first + tl.arange(0, block)
            scores = scores_of(logits, mask, temperature, row, ids, vocab, stride, mask_stride, has_mask)
            keys = key_of(scores)
            weights = tl.where(ids < vocab, weights_of(scores, keys, from_key, top, is_mass), 0.0)
            total += tl.sum(tl.where(keys[None, :] >= bounds[:, None], weights[None, :], 0.0), axis=1)
        cell = ((done.to(tl.int64) * n_rows + row) * n_chunks + chunk) * DIGITS + digit
        tl.store(sums + cell, total)


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def _end_search(  # type: ignore[no-untyped-def]
    temperatures, limits, sums, places, found, vocab, n_rows, n_chunks, is_mass: tl.constexpr, block_c: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    if tl.load(temperatures + row) > 0.0:
        place, _ = found_by(sums, places, limits, row, n_rows, n_chunks, 8, vocab, is_mass, block_c)
        tl.store(found + row, place)


class SearchedKeys(NamedTuple):
    """A search that has run: ``found_by`` reads its integers.

    Args:
        limits: as in ``search_keys``.
        sums: fp64 ``[PASSES, rows, chunks, DIGITS]``.
        places: int64 ``[PASSES, rows]``.
    """

    limits: Tensor
    sums: Tensor
    places: Tensor

    def write(self, scored: Scored, found: Tensor) -> None:
        """Write the found key of each row, 0 to 2**32 - 1, to ``found`` int64 ``[rows]``; 0 for one without a limit."""
        sizes = *scored.sizes[:3], self.limits.dtype == torch.float64, scored.block_c
        _end_search[(scored.grid[0],)](scored.temperatures, *self, found, *sizes, num_warps=4, enable_fp_fusion=False)


def search_keys(scored: Scored, best: Tensor, limits: Tensor, least: Tensor | None) -> SearchedKeys:
    """Run all passes of a search, one after the other.

    Args:
        scored: the rows.
        best: the best ``packed`` score of every chunk, int64 ``[rows, chunks]``.
        limits: how many ids, int32 ``[rows]``, or which share of the probability, fp64 ``[rows]``, must lie from the
            integer on. No limit are 0 ids, more ids than there are, and a share of 1.
        least: ids count from this integer on, int64 ``[rows]``; None: all do.
    """
    n_rows, n_chunks = scored.grid
    sums = torch.empty((PASSES, n_rows, n_chunks, DIGITS.value), dtype=torch.float64, device=best.device)
    places = best.new_empty((PASSES, n_rows))
    flags = least is not None, limits.dtype == torch.float64
    for done in range(PASSES):
        arguments = best, limits, best if least is None else least, sums, places, done
        # One warp: several would each compute all exponentials.
        scored.launch(_search, arguments, flags, num_warps=1, block=_BLOCK)
    return SearchedKeys(limits, sums, places)
