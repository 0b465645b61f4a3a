"""Products of rows and the matrices of their experts, and the weighted sums of experts' outputs."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.kernels.experts.routing import PairTiles
from engine.cuda.kernels.gemm import INPUT_LEAVES, Tile, group_arguments
from engine.cuda.kernels.launch import await_previous, launch_options
from engine.cuda.kernels.leaves import finish, sum_leaves
from engine.cuda.operands import ExpertMlps, Matrix

_OUTPUTS = 512  # of a program that sums experts


@triton.jit  # type: ignore[untyped-decorator]
def _multiply_pairs(  # type: ignore[no-untyped-def]  # Triton resolves annotations, and knows only its own
    x,
    weight,
    scales,
    group_scales,
    group_zeros,
    tile_experts,
    pairs,
    out,
    n_out,
    n_in,
    skipped,
    n_groups,
    x_stride,
    out_stride,
    pairs_per_row: tl.constexpr,  # of ``x``
    has_scales: tl.constexpr,
    group: tl.constexpr,
    is_packed: tl.constexpr,
    has_zeros: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    overlaps: tl.constexpr,
):
    await_previous(overlaps)
    tile = tl.program_id(0)  # first in the grid: tiles of one expert start together, and read the same weights
    expert = tl.load(tile_experts + tile).to(tl.int64)
    if expert >= 0:
        pair = tl.load(pairs + tile * block_m + tl.arange(0, block_m)).to(tl.int64)
        outs = tl.program_id(1) * block_n + tl.arange(0, block_n)
        in_rows, in_outs = pair >= 0, outs < n_out
        weight_row = expert * n_out + outs
        n_columns = n_groups * (group // 2 if is_packed else group) if group > 0 else n_in
        at = (x + (pair // pairs_per_row)[None, :] * x_stride, weight + weight_row[:, None] * n_columns)
        groups_at = (group_scales + weight_row * n_groups, group_zeros + weight_row * n_groups)
        sizes = (in_rows, in_outs, n_in, n_in, skipped)
        total = sum_leaves(*at, *groups_at, *sizes, 0, 1, group, is_packed, has_zeros, block_m, block_n, block_k)
        inside = in_rows[:, None] & in_outs[None, :]
        dtype: tl.constexpr = out.dtype.element_ty
        result = finish(
            tl.trans(total), pair[:, None], weight_row[None, :], inside, scales, scales, scales, 0,
            has_scales, False, False, dtype,
        )  # fmt: skip
        tl.store(out + pair[:, None] * out_stride + outs[None, :], result, mask=inside)


def multiply_pairs(
    x: Tensor, matrix: Matrix, tiles: PairTiles, tile: Tile, out: Tensor, *, overlaps: bool = False
) -> None:
    """Write the product of every pair of ``tiles`` to its row of ``out``; other rows keep their values.

    A product is summed in ascending order of inputs (one leaf), scaled and rounded once.

    Args:
        x: ``[n_rows, n_in]``, of which each is read by as many pairs, or ``[n_pairs, n_in]``; rows contiguous.
        matrix: ``[n_own * n_out, n_in]``, without bias.
        tiles: with ``tile.rows`` pairs each.
        tile: of a program.
        out: ``[n_pairs, n_out]`` of any float dtype, rows contiguous.
        overlaps: the kernel may start before the previous one ends, and waits for it (``launch_options``).
    """
    n_pairs, n_out = out.shape
    groups, group_sizes, group_kind = group_arguments(matrix, out)
    _multiply_pairs[(len(tiles.experts), triton.cdiv(n_out, tile.outputs))](
        x,
        matrix.weight,
        out if matrix.scales is None else matrix.scales,
        *groups,
        tiles.experts,
        tiles.pairs,
        out,
        n_out,
        x.shape[1],
        *group_sizes,
        x.stride(0),
        out.stride(0),
        n_pairs // len(x),
        matrix.scales is not None,
        *group_kind,
        *(tile.rows, tile.outputs, tile.inputs),
        overlaps,
        num_stages=tile.stages,
        **launch_options(tile.warps, overlaps),
    )


@triton.jit  # type: ignore[untyped-decorator]
def _add_ranges(  # type: ignore[no-untyped-def]
    values, experts, weights, outs, inside, stride, first, size, per_row: tl.constexpr, ranges: tl.constexpr
):
    """The fp32 sum, as a binary tree, of ``ranges`` ranges of ``size`` experts, from expert ``first`` on."""
    if ranges == 1:
        total = tl.zeros(outs.shape, tl.float32)
        for k in range(per_row):
            expert = tl.load(experts + k)
            if (expert >= first) & (expert < first + size):
                value = tl.load(values + k * stride + outs, mask=inside, other=0.0).to(tl.float32)
                total += tl.load(weights + k) * value
        return total
    else:  # noqa: RET505  # Triton compiles only the branch that a constant chooses
        half: tl.constexpr = ranges // 2
        pair = (values, experts, weights, outs, inside, stride)
        left = _add_ranges(*pair, first, size, per_row, half)
        return left + _add_ranges(*pair, first + half * size, size, per_row, half)


@triton.jit  # type: ignore[untyped-decorator]
def _sum_experts(  # type: ignore[no-untyped-def]
    values,
    experts,
    weights,
    out,
    width,
    stride,
    out_stride,
    first,
    size,
    per_row: tl.constexpr,
    ranges: tl.constexpr,
    block: tl.constexpr,
    overlaps: tl.constexpr,
):
    await_previous(overlaps)
    row = tl.program_id(0).to(tl.int64)
    outs = tl.program_id(1) * block + tl.arange(0, block)
    inside = outs < width
    pair = row * per_row
    of_row = (values + pair * stride, experts + pair, weights + pair)
    total = _add_ranges(*of_row, outs, inside, stride, first, size, per_row, ranges)
    tl.store(out + row * out_stride + outs, total, mask=inside)


def sum_experts(
    values: Tensor, experts: Tensor, weights: Tensor, mlps: ExpertMlps, out: Tensor, *, overlaps: bool = False
) -> None:
    """Write the weighted sum of this process's experts to ``out``, for every row; 0 for a row that has none of them.

    Experts are cut into ``INPUT_LEAVES`` ranges of equal size; if that is impossible, a process's own are one range.
    Those of a range are added in ascending order, ranges as a binary tree. So the tree of the sums of 1, 2, 4 or 8
    ranks has the same bits.

    Args:
        values: outputs of pairs ``[rows * per_row, width]``, rows contiguous; those of other experts are not read.
        experts: as ``route`` returns it.
        weights: as ``route`` returns it.
        mlps: says which experts this process has.
        out: fp32 ``[rows, width]``, rows contiguous.
        overlaps: the kernel may start before the previous one ends, and waits for it (``launch_options``).
    """
    size = max(1, mlps.n_experts // INPUT_LEAVES)
    if size * INPUT_LEAVES != mlps.n_experts or mlps.first % size or mlps.n_own % size:
        size = mlps.n_own
    n_rows, width = out.shape
    _sum_experts[(n_rows, triton.cdiv(width, _OUTPUTS))](
        *(values, experts, weights, out),
        width,
        values.stride(0),
        out.stride(0),
        *(mlps.first, size),
        mlps.per_row,
        mlps.n_own // size,
        _OUTPUTS,
        overlaps,
        **launch_options(4, overlaps),
    )
