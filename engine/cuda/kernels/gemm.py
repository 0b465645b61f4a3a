"""Matrix products in which the bits of a row depend on that row alone: one order of sums for any number of rows.

``leaves`` defines the order: the inputs are cut into leaves, a leaf is summed in ascending order, and leaves are added
as a binary tree. How many rows, outputs and leaves a program takes is tuning, which changes no bit.

The weight is the left factor: Hopper's wgmma reads it from registers, where one-byte weights are converted. It reads
the rows from shared memory, and multiplies any multiple of 8 rows by the same steps of 16 inputs. One-byte weights
(int8, or fp8 e4m3) are converted exactly to the dtype of the rows; every complete sum is scaled once. So are weights
with scale groups, among them packed integers of 4 bits: one group is multiplied at a time, and its sum is scaled. Rows
are not quantised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.kernels.launch import await_previous, launch_options
from engine.cuda.kernels.leaves import add_leaves, finish, sum_leaves
from engine.cuda.occupancy import HOPPER, get_card
from engine.cuda.operands import Matrix
from engine.cuda.plan.layout import BUCKETS

ROW_TILES = (16, 32, 64, 128)  # chosen by the number of rows; the last one for more rows, too
INPUT_LEAVES = 8  # of matrices whose inputs are sharded: attention's output and the MLP's down projection
LEAST_GROUPS = 160  # groups of four warps that share a weight if it has the leaves: an H100 has 132 multiprocessors
MOST_ROWS = BUCKETS[-1]  # rows whose partial sums are in memory at once; larger steps need no kernels of their own
_SHARDS, _SHARD_PROGRAMS = 8, 48  # the smallest shard of a weight is an eighth, and keeps this many programs busy


@dataclass(frozen=True, slots=True)
class Tile:
    """The share of a product that one program computes.

    Args:
        rows: multiplied at once.
        outputs: multiplied at once, 64 for each group of four warps.
        inputs: multiplied at a time.
        stages: of the copy pipeline for tiles of rows and weights.
        most_leaves: leaves that a program adds in registers; more go through memory.
    """

    rows: int
    outputs: int
    inputs: int
    stages: int
    most_leaves: int

    @property
    def warps(self) -> int:
        """Warps of a program."""
        return self.outputs // 16

    def programs(self, n_rows: int, n_out: int, leaves: int) -> int:
        """Return how many programs share the leaves of an output, a power of two."""
        groups = triton.cdiv(n_rows, self.rows) * triton.cdiv(n_out, self.outputs) * self.warps // 4
        shared = max(1, leaves // self.most_leaves)
        while shared < leaves and groups * shared < LEAST_GROUPS:
            shared *= 2
        return shared


def choose_leaves(n_out: int) -> int:
    """Return the leaves of a weight with ``n_out`` outputs, which may be sharded by outputs: 1, 2 or 4."""
    tiles = triton.cdiv(n_out, 64 * _SHARDS)
    return 1 if tiles >= _SHARD_PROGRAMS else 2 if 2 * tiles >= _SHARD_PROGRAMS else 4


def choose_tile(
    n_rows: int,
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
    row_tile: int | None = None,
    shared_bytes: int = HOPPER.shared_bytes,
    group: int = 0,
) -> Tile:
    """Return the tile of a step.

    Args:
        n_rows: rows of the step.
        dtype: of the rows.
        weight_dtype: of the weight; uint8 has two inputs in a byte.
        row_tile: rows to multiply at once; None: by ``n_rows``.
        shared_bytes: largest shared memory of a program.
        group: inputs of a scale group, which are multiplied at a time; 0: the weight has none.
    """
    rows = row_tile or next((size for size in ROW_TILES if size >= n_rows), ROW_TILES[-1])
    is_byte = weight_dtype.itemsize == 1
    outputs, inputs = 64 if rows <= 32 or (is_byte and rows <= 64) else 128, group or (128 if is_byte else 64)
    weight_bytes = inputs * outputs * weight_dtype.itemsize // (2 if weight_dtype == torch.uint8 else 1)
    stage_bytes = weight_bytes + inputs * rows * dtype.itemsize
    # What registers hold, as compiled for a Hopper GPU; the sum of a group takes some, too.
    most_leaves = {16: 8, 32: 4, 64: 2, 128: 2 if group <= 64 else 1}.get(rows, 1)
    most_stages = 8 if inputs == 32 else 4  # small copies need more of them under way
    return Tile(rows, outputs, inputs, max(1, min(most_stages, shared_bytes // stage_bytes)), most_leaves)


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    x,
    weight,
    scales,
    bias,
    residual,
    group_scales,
    group_zeros,
    out,
    n_rows,
    n_out,
    n_in,
    leaf_size,
    skipped,
    n_groups,
    x_stride,
    out_stride,
    residual_stride,
    leaves: tl.constexpr,
    is_complete: tl.constexpr,
    has_scales: tl.constexpr,
    has_bias: tl.constexpr,
    has_residual: tl.constexpr,
    group: tl.constexpr,
    is_packed: tl.constexpr,
    has_zeros: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    overlaps: tl.constexpr,
):
    await_previous(overlaps)
    rows = (tl.program_id(0) * block_m + tl.arange(0, block_m)).to(tl.int64)
    outs = (tl.program_id(1) * block_n + tl.arange(0, block_n)).to(tl.int64)
    part = tl.program_id(2)
    in_rows, in_outs = rows < n_rows, outs < n_out
    n_columns = n_groups * (group // 2 if is_packed else group) if group > 0 else n_in
    at = (x + rows[None, :] * x_stride, weight + outs[:, None] * n_columns)
    groups_at = (group_scales + outs * n_groups, group_zeros + outs * n_groups)
    sizes = (in_rows, in_outs, n_in, leaf_size, skipped)
    total = sum_leaves(
        *at, *groups_at, *sizes, part * leaves, leaves, group, is_packed, has_zeros, block_m, block_n, block_k
    )
    result = tl.trans(total)
    inside = in_rows[:, None] & in_outs[None, :]
    if is_complete:
        extras = (scales, bias, residual)
        dtype: tl.constexpr = out.dtype.element_ty
        result = finish(
            result, rows[:, None], outs[None, :], inside, *extras, residual_stride,
            has_scales, has_bias, has_residual, dtype,
        )  # fmt: skip
    tl.store(out + (part * n_rows + rows[:, None]) * out_stride + outs[None, :], result, mask=inside)


def multiply(
    x: Tensor,
    matrix: Matrix,
    out: Tensor,
    *,
    row_tile: int | None = None,
    tile: Tile | None = None,
    residual: Tensor | None = None,
    overlaps: bool = False,
) -> None:
    """Write ``x @ weight.T * scales + bias``, summed in fp32 and rounded, or ``residual +`` that, to ``out``.

    Args:
        x: ``[rows, n_in]``, bf16, fp16 or fp32, rows contiguous.
        matrix: its leaves alone decide the order of sums.
        out: ``[rows, n_out]``, rows contiguous, of any float dtype; may be ``residual``, must not be ``x``.
        row_tile: rows that are multiplied at once; None: by the number of rows.
        tile: what a program takes; by default ``choose_tile`` the rows.
        residual: ``[rows, n_out]`` of the dtype of ``out``.
        overlaps: each kernel may start before the previous one ends, and waits for it (``launch_options``).
    """
    leaves, n_out = matrix.leaves, len(matrix.weight)
    tile = tile or choose_matrix_tile(matrix, len(x), x, row_tile)
    programs = tile.programs(min(len(x), MOST_ROWS), n_out, leaves)
    size = MOST_ROWS if programs > 1 else max(1, len(x))
    for first in range(0, len(x), size):
        some = slice(first, first + size)
        rows, target = x[some], out[some]
        extras = {
            "scales": matrix.scales,
            "bias": matrix.bias,
            "residual": None if residual is None else residual[some],
        }
        if programs == 1:
            _launch(rows, matrix, target, leaves, leaves, tile, overlaps, **extras)
            continue
        sums = torch.empty(programs * len(rows), n_out, dtype=torch.float32, device=x.device)
        _launch(rows, matrix, sums, leaves, leaves // programs, tile, overlaps)
        add_leaves(sums, target, overlaps=overlaps, **extras)


def choose_matrix_tile(matrix: Matrix, n_rows: int, x: Tensor, row_tile: int | None = None) -> Tile:
    """Return the tile for ``n_rows`` rows like ``x`` on its device; ``row_tile`` as for ``choose_tile``."""
    group = 0 if matrix.groups is None else matrix.groups.size
    return choose_tile(n_rows, x.dtype, matrix.weight.dtype, row_tile, get_card(x.device).shared_bytes, group)


def group_arguments(matrix: Matrix, other: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[int, int], tuple[Any, ...]]:
    """Return what kernels take of scale groups: scales and zeros (or ``other``), two sizes, three constants."""
    groups = matrix.groups
    if groups is None:
        return (other, other), (0, 0), (0, False, False)
    zeros, is_packed = groups.zeros, matrix.weight.dtype == torch.uint8
    tensors = groups.scales, other if zeros is None else zeros
    return tensors, (groups.skipped, groups.scales.shape[1]), (groups.size, is_packed, zeros is not None)


def _launch(
    x: Tensor,
    matrix: Matrix,
    out: Tensor,
    leaves: int,
    program_leaves: int,
    tile: Tile,
    overlaps: bool,
    scales: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> None:
    (n_rows, n_in), n_out = x.shape, len(matrix.weight)
    extras = [out if extra is None else extra for extra in (scales, bias, residual)]
    groups, group_sizes, group_kind = group_arguments(matrix, out)
    grid = triton.cdiv(n_rows, tile.rows), triton.cdiv(n_out, tile.outputs), leaves // program_leaves
    _product[grid](
        x,
        matrix.weight,
        *extras,
        *groups,
        out,
        *(n_rows, n_out, n_in),
        triton.cdiv(n_in, leaves),
        *group_sizes,
        *(one.stride(0) for one in (x, out, extras[2])),
        program_leaves,
        program_leaves == leaves,
        *(extra is not None for extra in (scales, bias, residual)),
        *group_kind,
        *(tile.rows, tile.outputs, tile.inputs),
        overlaps,
        num_stages=tile.stages,
        **launch_options(tile.warps, overlaps),
    )
