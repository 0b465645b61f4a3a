"""Top-k, top-p and min-p on the device without a sort: keeps the ids that ``sampling.truncation`` keeps on a CPU.

Ordered by falling score, equal ones by rising id, the kept ids come first. The *floor* of a row describes them: the
last kept score, and the last kept id with that score. ``search`` finds the scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.kernels.scores import (
    Scored,
    best_of,
    finite,
    key_of,
    number_of,
    packed_id,
    packed_value,
    scores_of,
)
from engine.cuda.kernels.search import DIGITS, found_by, search_keys, weights_of


@dataclass(frozen=True, slots=True)
class Truncation:
    """The rules that drop ids of every row; None: no row has such a rule.

    Args:
        top_k: int32 ``[rows]``; 0 and what exceeds the vocabulary: no limit.
        top_p: fp64 ``[rows]``; 1: no limit.
        log_min_p: logarithms, fp64 ``[rows]``; -inf: no limit.
    """

    top_k: Tensor | None = None
    top_p: Tensor | None = None
    log_min_p: Tensor | None = None


class Floors(NamedTuple):
    """The kept ids of every row: scores above ``values``, and equal ones up to ``ids``.

    Args:
        values: fp32 ``[rows]``.
        ids: int32 ``[rows]``.
    """

    values: Tensor
    ids: Tensor


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def _count_ties(  # type: ignore[no-untyped-def]
    logits,
    mask,
    temperatures,
    best,
    limits,
    least,
    sums,
    places,
    nucleus,
    above,
    ties,
    vocab,
    n_rows,
    n_chunks,
    stride,
    mask_stride,
    has_mask: tl.constexpr,
    has_least: tl.constexpr,
    size: tl.constexpr,
    block: tl.constexpr,
    block_c: tl.constexpr,
):
    """The nucleus's least key; of every chunk, the probability above it (up to a factor), and how many ids have it."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + row)
    if temperature > 0.0:
        place, _ = found_by(sums, places, limits, row, n_rows, n_chunks, 8, vocab, True, block_c)
        if has_least:
            place = tl.maximum(place, tl.load(least + row))
        if chunk == 0:
            tl.store(nucleus + row, place)
        top = finite(packed_value(best_of(best, row, n_chunks, block_c))).to(tl.float64)
        mass = tl.zeros((block,), tl.float64)
        n_ties = tl.zeros((block,), tl.int32)
        for first in range(0, tl.minimum(size, vocab - chunk * size), block):
            ids = chunk * size + first + tl.arange(0, block)
            inside = ids < vocab
            scores = scores_of(logits, mask, temperature, row, ids, vocab, stride, mask_stride, has_mask)
            keys = key_of(scores)
            mass += tl.where(inside, weights_of(scores, keys, place + 1, top, True), 0.0)
            n_ties += (inside & (keys == place)).to(tl.int32)
        tl.store(above + row * n_chunks + chunk, tl.sum(mass, axis=0))
        tl.store(ties + row * n_chunks + chunk, tl.sum(n_ties, axis=0))


@triton.jit
def _ties_kept(above, target, weight, n_ties):  # type: ignore[no-untyped-def]
    """The number of ``n_ties`` equal ids that stay: the fewest, at least one, that lift ``above`` to ``target``."""
    estimate = tl.ceil((target - above) / tl.where(weight > 0.0, weight, 1.0))
    n = tl.minimum(tl.maximum(estimate, 1.0), tl.maximum(n_ties, 1).to(tl.float64)).to(tl.int32)
    n = tl.where((n > 1) & (above + (n - 1).to(tl.float64) * weight >= target), n - 1, n)
    return tl.where((n < n_ties) & (above + n.to(tl.float64) * weight < target), n + 1, n)


@triton.jit  # type: ignore[untyped-decorator]
def _last_tie(  # type: ignore[no-untyped-def]
    sums, above, ties, limit, weight, row, chunk, n_chunks, block_c: tl.constexpr
):
    """The last of a row's equal ids that stays, counted from 1 in this chunk, and how many of them the chunk has."""
    chunks = tl.arange(0, block_c)
    here = chunks < n_chunks
    of_chunks = tl.load(ties + row * n_chunks + chunks, mask=here, other=0)
    mass = tl.sum(tl.load(above + row * n_chunks + chunks, mask=here, other=0.0), axis=0)
    cells = sums + (row * n_chunks + chunks) * DIGITS
    target = limit * tl.sum(tl.load(cells, mask=here, other=0.0), axis=0)
    kept = _ties_kept(mass, target, weight, tl.sum(of_chunks, axis=0))
    before = tl.sum(tl.where(chunks < chunk, of_chunks, 0), axis=0)
    return kept - before, tl.sum(tl.where(chunks == chunk, of_chunks, 0), axis=0)


@triton.jit  # type: ignore[untyped-decorator]
def _nth_tie(  # type: ignore[no-untyped-def]
    logits,
    mask,
    temperature,
    row,
    chunk,
    key,
    n,
    vocab,
    stride,
    mask_stride,
    has_mask: tl.constexpr,
    size: tl.constexpr,
    block: tl.constexpr,
):
    """The ``n``-th id of a chunk whose score has this key, counted from 1."""
    found, before = vocab, 0
    for first in range(0, tl.minimum(size, vocab - chunk * size), block):
        ids = chunk * size + first + tl.arange(0, block)
        scores = scores_of(logits, mask, temperature, row, ids, vocab, stride, mask_stride, has_mask)
        is_tie = (ids < vocab) & (key_of(scores) == key)
        rank = before + tl.cumsum(is_tie.to(tl.int32), axis=0)
        found += tl.sum(tl.where(is_tie & (rank == n), ids - vocab, 0), axis=0)
        before += tl.sum(is_tie.to(tl.int32), axis=0)
    return found


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def _floor(  # type: ignore[no-untyped-def]
    logits,
    mask,
    temperatures,
    best,
    top_p,
    log_min_p,
    least,
    sums,
    nucleus,
    above,
    ties,
    floor_values,
    floor_ids,
    vocab,
    n_rows,
    n_chunks,
    stride,
    mask_stride,
    has_mask: tl.constexpr,
    has_top_k: tl.constexpr,
    has_top_p: tl.constexpr,
    has_min_p: tl.constexpr,
    size: tl.constexpr,
    block: tl.constexpr,
    block_c: tl.constexpr,
):
    """The floor of a row, written by one of its programs: where the nucleus ends among equal scores, their chunk's."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + row)
    if temperature > 0.0:
        first_best = best_of(best, row, n_chunks, block_c)
        top = packed_value(first_best)
        best_key = key_of(top)
        key = tl.zeros((), tl.int64)
        if has_top_k:
            key = tl.load(least + row)
        if has_min_p:
            lowest = (top.to(tl.float64) + tl.load(log_min_p + row)).to(tl.float32)
            key = tl.maximum(key, key_of(lowest))
        last_id = vocab
        is_mine = chunk == 0
        if has_top_p:
            place = tl.load(nucleus + row)
            limit = tl.load(top_p + row)
            if limit < 1.0:
                key = tl.maximum(key, place)
            if (limit < 1.0) & (place == key) & (key <= best_key):
                weight = tl.exp(number_of(place).to(tl.float64) - top.to(tl.float64))
                nth, mine = _last_tie(sums, above, ties, limit, weight, row, chunk, n_chunks, block_c)
                is_mine = (nth > 0) & (nth <= mine)
                if is_mine:
                    last_id = _nth_tie(
                        logits, mask, temperature, row, chunk, place, nth, vocab, stride, mask_stride,
                        has_mask, size, block,
                    )  # fmt: skip
        if is_mine:
            is_empty = key > best_key  # then the best one stays
            key = tl.where(is_empty, best_key, key)
            tl.store(floor_values + row, number_of(key))
            tl.store(floor_ids + row, tl.where(is_empty, packed_id(first_best), last_id))


def floors(scored: Scored, best: Tensor, truncation: Truncation) -> Floors:
    """Return the floor of every row that has a temperature; other rows' floors are undefined.

    Args:
        scored: the rows.
        best: the best ``packed`` score of every chunk, int64 ``[rows, chunks]``.
        truncation: the rules of every row.
    """
    top_k, top_p, log_min_p = truncation.top_k, truncation.top_p, truncation.log_min_p
    has_top_k, has_top_p, has_min_p = top_k is not None, top_p is not None, log_min_p is not None
    n_rows, unused = scored.grid[0], best
    least = nucleus = sums = above = ties = unused
    if top_k is not None:
        least = best.new_empty(n_rows)
        search_keys(scored, best, top_k, None).write(scored, least)
    if top_p is not None:
        search = search_keys(scored, best, top_p, least if has_top_k else None)
        sums, nucleus = search.sums, best.new_empty(n_rows)
        above, ties = torch.empty_like(best, dtype=torch.float64), torch.empty_like(best, dtype=torch.int32)
        arguments = best, top_p, least, sums, search.places, nucleus, above, ties
        scored.launch(_count_ties, arguments, (has_top_k,), num_warps=4)
    found = Floors(best.new_empty(n_rows, dtype=torch.float32), best.new_empty(n_rows, dtype=torch.int32))
    limits = unused if top_p is None else top_p, unused if log_min_p is None else log_min_p
    inputs = best, *limits, least, sums, nucleus, above, ties, *found
    scored.launch(_floor, inputs, (has_top_k, has_top_p, has_min_p), num_warps=8)
    return found
