"""Chooses the experts of every row, and sorts pairs of a row and one of its experts by expert.

Pair ``row * per_row + k`` is a row's expert number ``k``, in ascending order of experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.kernels.launch import await_previous, launch_options

_BLOCK = 1024  # pairs that a program of the sort reads at a time


@triton.jit  # type: ignore[untyped-decorator]
def _route(  # type: ignore[no-untyped-def]  # Triton resolves annotations, and knows only its own
    scores,
    firsts,
    experts,
    weights,
    n_experts,
    scores_stride,
    per_row: tl.constexpr,
    normalizes: tl.constexpr,
    rounds: tl.constexpr,
    block: tl.constexpr,
    block_k: tl.constexpr,
    overlaps: tl.constexpr,
):
    await_previous(overlaps)
    row = tl.program_id(0).to(tl.int64)
    numbers = tl.arange(0, block)
    inside = numbers < n_experts
    is_row = tl.load(firsts + row) >= 0
    score = tl.load(scores + row * scores_stride + numbers, mask=inside & is_row, other=0.0).to(tl.float32)
    best = tl.max(tl.where(inside, score, float("-inf")), axis=0)
    power = tl.exp(tl.where(inside, score - best, float("-inf")))
    weight = tl.div_rn(power, tl.zeros_like(power) + tl.sum(power, axis=0))
    chosen = numbers < 0
    if is_row:
        for _ in range(per_row):
            free = inside & (chosen == 0)
            best = tl.max(tl.where(free, weight, -1.0), axis=0)
            # A row with NaN chooses none: no expert has the number ``block``.
            chosen = chosen | (numbers == tl.min(tl.where(free & (weight == best), numbers, block), axis=0))
    if normalizes:
        total = tl.sum(tl.where(chosen, weight, 0.0), axis=0)
        weight = tl.div_rn(weight, tl.zeros_like(weight) + tl.where(total > 0.0, total, 1.0))
    if rounds:
        weight = weight.to(scores.dtype.element_ty).to(tl.float32)
    pair = row * per_row + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    tl.store(experts + pair, numbers, mask=chosen)
    tl.store(weights + pair, weight, mask=chosen)
    place = tl.arange(0, block_k)
    is_empty = (place >= tl.sum(chosen.to(tl.int32), axis=0)) & (place < per_row)
    tl.store(experts + row * per_row + place, tl.zeros_like(place) + n_experts, mask=is_empty)
    tl.store(weights + row * per_row + place, tl.zeros((block_k,), tl.float32), mask=is_empty)


def route(
    scores: Tensor, firsts: Tensor, per_row: int, normalizes: bool, rounds: bool, *, overlaps: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the experts of every row and their weights, which are softmax probabilities.

    A row has the ``per_row`` experts of the highest probability; of equal ones those with the lowest numbers.

    Args:
        scores: ``[rows, n_experts]`` in the dtype of the rows, rows contiguous.
        firsts: int32 ``[rows]``, negative for rows that fill a bucket, which have no expert.
        per_row: experts of a row, at most ``n_experts``.
        normalizes: whether the weights of a row are divided by their sum.
        rounds: whether weights are rounded to the dtype of ``scores``.
        overlaps: the kernel may start before the previous one ends, and waits for it (``launch_options``).

    Returns:
        Experts, int32 ``[rows, per_row]``, ascending; ``n_experts`` where a row has none. Weights, fp32, like experts.
    """
    n_rows, n_experts = scores.shape
    experts = torch.empty(n_rows, per_row, dtype=torch.int32, device=scores.device)
    weights = torch.empty(n_rows, per_row, dtype=torch.float32, device=scores.device)
    sizes = triton.next_power_of_2(n_experts), triton.next_power_of_2(per_row)
    _route[(n_rows,)](
        scores,
        firsts,
        experts,
        weights,
        n_experts,
        scores.stride(0),
        *(per_row, normalizes, rounds),
        *sizes,
        overlaps,
        **launch_options(1, overlaps),
    )
    return experts, weights


@dataclass(frozen=True, slots=True)
class PairTiles:
    """Pairs in tiles, each with pairs of one expert.

    Args:
        experts: int32 ``[n_tiles]``, the expert of a tile, counted from the first own one; -1: the tile is unused.
        pairs: int32 ``[n_tiles * rows of a tile]``, ascending for each expert; -1 fills an expert's last tile.
            Those of unused tiles are undefined.
    """

    experts: Tensor
    pairs: Tensor


@triton.jit(do_not_specialize=["n_pairs", "n_tiles"])  # type: ignore[untyped-decorator]
def _sort_pairs(  # type: ignore[no-untyped-def]
    experts,
    tile_experts,
    pairs,
    n_pairs,
    n_tiles,
    rows,
    first,
    n_own: tl.constexpr,
    bins: tl.constexpr,  # more than ``n_own``
    block: tl.constexpr,
    overlaps: tl.constexpr,
):
    """Fills the tiles of one expert; every program counts the tiles of the experts before its own."""
    await_previous(overlaps)
    own = tl.program_id(0)  # an expert, counted from the first that this process has
    number = tl.arange(0, bins)
    counts = tl.zeros((bins,), tl.int32)
    for start in range(0, n_pairs, block):
        pair = start + tl.arange(0, block)
        expert = tl.load(experts + pair, mask=pair < n_pairs, other=-1) - first
        counts += tl.histogram(tl.where((expert >= 0) & (expert < n_own), expert, bins - 1), bins)
    tiles = tl.where(number < n_own, tl.cdiv(counts, rows), 0)
    first_tile = tl.sum(tl.where(number < own, tiles, 0), axis=0)
    last_tile = first_tile + tl.sum(tl.where(number == own, tiles, 0), axis=0)
    end = first_tile * rows
    for start in range(0, n_pairs, block):
        pair = start + tl.arange(0, block)
        is_own = tl.load(experts + pair, mask=pair < n_pairs, other=-1) - first == own
        tl.store(pairs + end + tl.cumsum(is_own.to(tl.int32), axis=0) - 1, pair, mask=is_own)
        end += tl.sum(is_own.to(tl.int32), axis=0)
    for start in range(end, last_tile * rows, block):
        place = start + tl.arange(0, block)
        tl.store(pairs + place, tl.full((block,), -1, tl.int32), mask=place < last_tile * rows)
    for start in range(first_tile, last_tile, block):
        place = start + tl.arange(0, block)
        tl.store(tile_experts + place, tl.zeros_like(place) + own, mask=place < last_tile)
    if own == n_own - 1:
        for start in range(last_tile, n_tiles, block):
            place = start + tl.arange(0, block)
            tl.store(tile_experts + place, tl.full((block,), -1, tl.int32), mask=place < n_tiles)


def sort_pairs(experts: Tensor, first: int, n_own: int, rows: int, *, overlaps: bool = False) -> PairTiles:
    """Return the pairs of this process's experts, sorted by expert.

    Args:
        experts: of pairs, int32, contiguous, as ``route`` returns it.
        first: number of the first own expert.
        n_own: own experts.
        rows: pairs of a tile, a multiple of 16.
        overlaps: the kernel may start before the previous one ends, and waits for it (``launch_options``).
    """
    n_pairs = experts.numel()
    n_tiles = min(n_pairs, n_pairs // rows + n_own)  # an expert fills all its tiles but the last one
    tile_experts = torch.empty(n_tiles, dtype=torch.int32, device=experts.device)
    pairs = torch.empty(n_tiles * rows, dtype=torch.int32, device=experts.device)
    bins = triton.next_power_of_2(n_own + 1)
    _sort_pairs[(n_own,)](
        *(experts, tile_experts, pairs),
        *(n_pairs, n_tiles, rows, first),
        *(n_own, bins, _BLOCK),
        overlaps,
        **launch_options(4, overlaps),
    )
    return PairTiles(tile_experts, pairs)
