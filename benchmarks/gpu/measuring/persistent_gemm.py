"""A matrix product whose every row depends on that row alone: fixed order of summation, whatever the number of rows.

A persistent kernel: each program takes tiles until none are left, one program or two on a multiprocessor. A tile's sum
runs over the inputs in blocks of ``BLOCK_K``, ascending; where outputs are few, the inputs are split into a number of
parts that the matrix's shape alone decides, and the parts are summed in order by a second kernel. Needs Triton; runs
on CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_K = 64


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is cut up. ``split_k`` must not depend on the rows; the rest changes no bit, or that is the check.

    Args:
        block_n: outputs of a tile.
        split_k: parts of the inputs.
        block_m: rows of a tile; below 64, Hopper multiplies with mma.sync instead of wgmma.
        warps: of a program.
        stages: of its pipeline.
        programs: on a multiprocessor.
    """

    block_n: int
    split_k: int
    block_m: int = 64
    warps: int = 4
    stages: int = 4
    programs: int = 1


@triton.jit(do_not_specialize=["n_rows"])  # type: ignore[untyped-decorator]
def _tiles(  # type: ignore[no-untyped-def]  # Triton resolves annotations, and knows only its own
    x,
    weight,
    out,
    n_rows,
    n_out,
    n_in,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    split_k: tl.constexpr,
):
    tiles_m = tl.cdiv(n_rows, block_m)
    tiles_n = tl.cdiv(n_out, block_n)
    part_k = n_in // split_k
    offsets_k = tl.arange(0, block_k)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n * split_k, tl.num_programs(0)):
        tile_m = tile % tiles_m  # tiles that share weights follow each other
        tile_n = (tile // tiles_m) % tiles_n
        part = tile // (tiles_m * tiles_n)
        rows = (tile_m * block_m + tl.arange(0, block_m)).to(tl.int64)
        outs = (tile_n * block_n + tl.arange(0, block_n)).to(tl.int64)
        first = part * part_k
        x_at = x + rows[:, None] * n_in + (first + offsets_k)[None, :]
        weight_at = weight + outs[None, :] * n_in + (first + offsets_k)[:, None]
        total = tl.zeros((block_m, block_n), dtype=tl.float32)
        for _ in range(0, part_k, block_k):
            left = tl.load(x_at, mask=rows[:, None] < n_rows, other=0.0)
            right = tl.load(weight_at, mask=outs[None, :] < n_out, other=0.0)
            total = tl.dot(left, right, total, input_precision="ieee")  # which bf16 ignores
            x_at += block_k
            weight_at += block_k
        out_at = out + (part * n_rows + rows[:, None]) * n_out + outs[None, :]
        inside = (rows[:, None] < n_rows) & (outs[None, :] < n_out)
        tl.store(out_at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _sum_parts(parts, out, n_numbers, split_k: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = (tl.program_id(0) * block + tl.arange(0, block)).to(tl.int64)
    inside = at < n_numbers
    total = tl.zeros((block,), dtype=tl.float32)
    for part in tl.static_range(split_k):
        total += tl.load(parts + part * n_numbers + at, mask=inside, other=0.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@cache
def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 4


def product(x: Tensor, weight: Tensor, tiling: Tiling) -> Tensor:
    """``x`` ``[n, n_in]`` times ``weight`` ``[n_out, n_in]`` transposed: ``[n, n_out]`` in the dtype of ``x``.

    Both are contiguous; ``n_in`` is a multiple of ``BLOCK_K`` times ``tiling.split_k``.
    """
    n_rows, n_in = x.shape
    n_out, split = weight.shape[0], tiling.split_k
    assert n_in % (BLOCK_K * split) == 0, f"{n_in} inputs are not a multiple of {BLOCK_K} x {split}"
    out = torch.empty((n_rows, n_out), dtype=x.dtype, device=x.device)
    to = out if split == 1 else torch.empty((split, n_rows, n_out), dtype=torch.float32, device=x.device)
    tiles = triton.cdiv(n_rows, tiling.block_m) * triton.cdiv(n_out, tiling.block_n) * split
    _tiles[(min(tiles, _multiprocessors(x.device) * tiling.programs),)](
        x,
        weight,
        to,
        n_rows,
        n_out,
        n_in,
        tiling.block_m,
        tiling.block_n,
        BLOCK_K,
        split,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    if split > 1:
        _sum_parts[(triton.cdiv(out.numel(), 1024),)](to, out, out.numel(), split, 1024, num_warps=4)
    return out
