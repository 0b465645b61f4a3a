"""Finds, in every row, the largest integer from which on enough ids lie: enough of them, or of their probability.

Scores become integers of 32 bits of the same order. Eight passes of four bits: a pass sums up, for 16 integers, the
counts or the probabilities of the ids from there on, in chunks of the row, and the next one goes on at the largest
integer whose sum suffices. Sums are fp64, in an order that the vocabulary alone decides.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """What ids count in a sum, fp64: 1, or a probability up to a factor, and 0 below the key ``least``."""
    if is_mass:
        return tl.where(keys >= least, tl.exp(scores.to(tl.float64) - best), 0.0)
    return tl.where(keys >= least, 1.0, 0.0).to(tl.float64)


@triton.jit  # type: ignore[untyped-decorator]
def found_by(  # type: ignore[no-untyped-def]  # Triton resolves annotations, and knows only its own
    sums, places, limits, row, n_rows, n_chunks, done, vocab, is_mass: tl.constexpr, block_c: tl.constexpr
):
    """Where a search stands behind ``done`` passes, as (int64 key from 0 to 2**32, what its sum has to reach)."""
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


@dataclass(frozen=True, slots=True)
class Search:
    """The passes of one search, one behind the other.

    Args:
        scored: the rows.
        best: the best ``packed`` score of every chunk, int64 ``[rows, chunks]``.
        limits: what has to lie from the integer on: ids, int32 ``[rows]``, of which 0 and more than there are mean no
            limit, or shares of the probability, fp64 ``[rows]``, of which 1 means no limit.
        least: ids count from this integer on, int64 ``[rows]``; None: all do.
        sums: fp64 ``[PASSES, rows, chunks, DIGITS]``.
        places: int64 ``[PASSES, rows]``.
    """

    scored: Scored
    best: Tensor
    limits: Tensor
    least: Tensor | None
    sums: Tensor
    places: Tensor

    @property
    def is_mass(self) -> bool:
        """Whether probabilities are summed up."""
        return self.limits.dtype == torch.float64

    def run(self) -> None:
        """All passes; ``found_by`` then knows the integers."""
        rows = self.scored
        for done in range(PASSES):
            _search[rows.grid](
                *rows.tensors,
                self.best,
                self.limits,
                self.best if self.least is None else self.least,
                self.sums,
                self.places,
                done,
                *rows.sizes,
                rows.has_mask,
                self.least is not None,
                self.is_mass,
                rows.chunk,
                _BLOCK,
                rows.block_c,
                num_warps=1,  # several would each compute all exponentials
                enable_fp_fusion=False,
            )

    def end(self, found: Tensor) -> None:
        """Write the integers, from 0 to 2**32 - 1, to ``found`` int64 ``[rows]``; 0 where there is no limit."""
        rows = self.scored
        _end_search[(rows.grid[0],)](
            rows.temperatures,
            self.limits,
            self.sums,
            self.places,
            found,
            *rows.sizes[:3],
            self.is_mass,
            rows.block_c,
            num_warps=4,
            enable_fp_fusion=False,
        )


def searched(scored: Scored, best: Tensor, limits: Tensor, least: Tensor | None) -> Search:
    """A search that has been run."""
    n_rows, n_chunks = scored.grid
    sums = torch.empty((PASSES, n_rows, n_chunks, DIGITS.value), dtype=torch.float64, device=best.device)
    search = Search(scored, best, limits, least, sums, best.new_empty((PASSES, n_rows)))
    search.run()
    return search
