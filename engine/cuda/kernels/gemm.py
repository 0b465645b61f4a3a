"""Matrix products whose every row depends on that row alone: one order of sums, whatever the number of rows.

The order is that of ``leaves``: the inputs are cut into leaves, a leaf is summed in ascending order, and leaves are
added as a binary tree. How many rows, outputs and leaves a program takes is tuning, which changes no bit. The weight is
the left factor: Hopper's wgmma takes it from registers, where weights of one byte are converted, and the rows, of which
it multiplies any multiple of 8 by the same steps of 16 inputs, from shared memory.

Weights of one byte (int8, or fp8 e4m3) are converted to the dtype of the rows, which is exact, and every sum is scaled
once, when it is complete; rows are not quantised.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.kernels.leaves import add_leaves, finish
from engine.cuda.kernels.overlap import await_previous
from engine.cuda.occupancy import HOPPER, card_of
from engine.cuda.plan.layout import BUCKETS

ROW_TILES = (16, 32, 64, 128)  # chosen by the number of rows; the last one for more rows, too
INPUT_LEAVES = 8  # of matrices whose inputs are sharded: attention's output and the MLP's down projection
LEAST_GROUPS = 160  # of four warps that share a weight where its leaves allow it: an H100 has 132 multiprocessors
MOST_ROWS = BUCKETS[-1]  # whose partial sums are in memory at once; larger steps need no kernels of their own
_SHARDS, _SHARD_PROGRAMS = 8, 48  # the smallest shard of a weight is an eighth, and keeps this many programs busy


@dataclass(frozen=True, slots=True)
class Tile:
    """What a program of a product takes, and how many programs share an output's leaves.

    Args:
        rows: multiplied at once.
        outputs: multiplied at once, 64 for each group of four warps.
        inputs: multiplied at a time.
        stages: tiles of rows and weights on their way to a multiprocessor at a time.
        most_leaves: that a program adds up in registers; more go through memory.
    """

    rows: int
    outputs: int
    inputs: int
    stages: int
    most_leaves: int

    @property
    def warps(self) -> int:
        """Of a program."""
        return self.outputs // 16

    def programs(self, n_rows: int, n_out: int, leaves: int) -> int:
        """Programs that share an output's leaves, a power of two."""
        groups = triton.cdiv(n_rows, self.rows) * triton.cdiv(n_out, self.outputs) * self.warps // 4
        shared = max(1, leaves // self.most_leaves)
        while shared < leaves and groups * shared < LEAST_GROUPS:
            shared *= 2
        return shared


def leaves_of(n_out: int) -> int:
    """Leaves of a weight whose outputs are sharded, by its outputs ``n_out`` before it is: 1, 2 or 4."""
    tiles = triton.cdiv(n_out, 64 * _SHARDS)
    return 1 if tiles >= _SHARD_PROGRAMS else 2 if 2 * tiles >= _SHARD_PROGRAMS else 4


def tile_of(
    n_rows: int,
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
    row_tile: int | None = None,
    shared_bytes: int = HOPPER.shared_bytes,
) -> Tile:
    """The tile of a step of ``n_rows`` rows.

    Args:
        n_rows: of the step.
        dtype: of the rows.
        weight_dtype: of the weight.
        row_tile: rows to multiply at once; None: by ``n_rows``.
        shared_bytes: the largest shared memory of a program.
    """
    rows = row_tile or next((size for size in ROW_TILES if size >= n_rows), ROW_TILES[-1])
    is_byte = weight_dtype.itemsize == 1
    outputs, inputs = 64 if rows <= 32 or (is_byte and rows <= 64) else 128, 128 if is_byte else 64
    stage_bytes = inputs * (outputs * weight_dtype.itemsize + rows * dtype.itemsize)
    most_leaves = {16: 8, 32: 4, 64: 2, 128: 2}.get(rows, 1)  # what registers hold, as compiled for a Hopper GPU
    return Tile(rows, outputs, inputs, max(1, min(4, shared_bytes // stage_bytes)), most_leaves)


@triton.jit  # type: ignore[untyped-decorator]
def _sum_leaves(  # type: ignore[no-untyped-def]  # Triton resolves annotations, and knows only its own
    x_at,
    weight_at,
    in_rows,
    in_outs,
    n_in,
    leaf_size,
    first,
    leaves: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
):
    """The sum of ``leaves`` leaves from ``first`` on, fp32 ``[block_n, block_m]``."""
    if leaves == 1:
        total = tl.zeros((block_n, block_m), dtype=tl.float32)
        end = tl.minimum((first + 1) * leaf_size, n_in)
        for at in range(first * leaf_size, end, block_k):
            inputs = at + tl.arange(0, block_k)
            inside = inputs < end
            left = tl.load(weight_at + inputs[None, :], mask=in_outs[:, None] & inside[None, :], other=0.0)
            right = tl.load(x_at + inputs[:, None], mask=in_rows[None, :] & inside[:, None], other=0.0)
            total = tl.dot(left.to(right.dtype), right, total, input_precision="ieee")  # which bf16 ignores
        return total
    else:  # noqa: RET505  # Triton compiles only the branch that a constant chooses
        half: tl.constexpr = leaves // 2
        sizes = (in_rows, in_outs, n_in, leaf_size)
        one = _sum_leaves(x_at, weight_at, *sizes, first, half, block_m, block_n, block_k)
        two = _sum_leaves(x_at, weight_at, *sizes, first + half, half, block_m, block_n, block_k)
        return one + two


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    x,
    weight,
    scales,
    bias,
    residual,
    out,
    n_rows,
    n_out,
    n_in,
    leaf_size,
    x_stride,
    out_stride,
    residual_stride,
    leaves: tl.constexpr,
    is_complete: tl.constexpr,
    has_scales: tl.constexpr,
    has_bias: tl.constexpr,
    has_residual: tl.constexpr,
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
    x_at, weight_at = x + rows[None, :] * x_stride, weight + outs[:, None] * n_in
    sizes = (in_rows, in_outs, n_in, leaf_size)
    total = _sum_leaves(x_at, weight_at, *sizes, part * leaves, leaves, block_m, block_n, block_k)
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
    weight: Tensor,
    out: Tensor,
    *,
    leaves: int,
    row_tile: int | None = None,
    tile: Tile | None = None,
    scales: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    overlaps: bool = False,
) -> None:
    """``out = x @ weight.T * scales + bias``, added up in fp32, or ``out = residual +`` that, rounded first.

    Args:
        x: ``[rows, n_in]``, bf16, fp16 or fp32, rows contiguous.
        weight: ``[n_out, n_in]``, contiguous, of the dtype of ``x``, int8 or float8_e4m3fn.
        out: ``[rows, n_out]``, rows contiguous, of any float dtype; may be ``residual``, must not be ``x``.
        leaves: of the sums over inputs, a power of two; it decides the order of sums, which nothing else does.
        row_tile: rows that are multiplied at once; None: by the number of rows.
        tile: what a program takes; by default ``tile_of`` the rows.
        scales: fp32 ``[n_out]``, of a weight of one byte.
        bias: ``[n_out]``.
        residual: ``[rows, n_out]`` of the dtype of ``out``.
        overlaps: whether launches may overlap the previous kernel's end.
    """
    n_out = len(weight)
    tile = tile or tile_of(len(x), x.dtype, weight.dtype, row_tile, card_of(x.device).shared_bytes)
    programs = tile.programs(min(len(x), MOST_ROWS), n_out, leaves)
    size = MOST_ROWS if programs > 1 else max(1, len(x))
    for first in range(0, len(x), size):
        some = slice(first, first + size)
        rows, target = x[some], out[some]
        extras = {"scales": scales, "bias": bias, "residual": None if residual is None else residual[some]}
        if programs == 1:
            _launch(rows, weight, target, leaves, leaves, tile, overlaps, **extras)
            continue
        sums = torch.empty(programs * len(rows), n_out, dtype=torch.float32, device=x.device)
        _launch(rows, weight, sums, leaves, leaves // programs, tile, overlaps)
        add_leaves(sums, target, overlaps=overlaps, **extras)


def _launch(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    leaves: int,
    of_program: int,
    tile: Tile,
    overlaps: bool,
    scales: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> None:
    (n_rows, n_in), n_out = x.shape, len(weight)
    extras = [out if extra is None else extra for extra in (scales, bias, residual)]
    grid = triton.cdiv(n_rows, tile.rows), triton.cdiv(n_out, tile.outputs), leaves // of_program
    _product[grid](
        x,
        weight,
        *extras,
        out,
        n_rows,
        n_out,
        n_in,
        triton.cdiv(n_in, leaves),
        x.stride(0),
        out.stride(0),
        extras[2].stride(0),
        of_program,
        of_program == leaves,
        *(extra is not None for extra in (scales, bias, residual)),
        tile.rows,
        tile.outputs,
        tile.inputs,
        overlaps,
        num_warps=tile.warps,
        num_stages=tile.stages,
        launch_pdl=overlaps,
        enable_fp_fusion=False,
    )
