"""Products equal those in fp64, and their sums have one order whatever programs share them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.cuda.kernels import gemm
from engine.cuda.kernels.gemm import INPUT_LEAVES, Tile, choose_leaves, choose_tile, multiply
from engine.cuda.kernels.leaves import add_leaves
from engine.cuda.operands import Matrix
from tests.engine.cuda.kernels.rows import poisoned, same_bits

FP8 = torch.float8_e4m3fn
SHAPES = [(100, 90), (64, 1100), (192, 70)]  # outputs, inputs: odd ones, several blocks of a leaf, several tiles
ROW_TILES = (16, 32, 64, 128, 256)


def weight_of(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    random = torch.Generator().manual_seed(shape[0])
    if dtype == torch.int8:
        return torch.randint(-127, 128, shape, dtype=dtype, generator=random)
    return torch.randn(shape, generator=random).to(dtype)


def product(x: Tensor, weight: Tensor, leaves: int, tile: Tile | None = None) -> Tensor:
    out = poisoned(len(x), len(weight))
    multiply(x, Matrix(weight, None, None, leaves), out, tile=tile)
    return out


def tree_of(leaves: list[Tensor]) -> Tensor:
    """((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))"""
    half = len(leaves) // 2
    return tree_of(leaves[:half]) + tree_of(leaves[half:]) if half else leaves[0]


def slow_product(x: Tensor, weight: Tensor, leaves: int, block: int = 64) -> Tensor:
    """The order of sums as it is promised: blocks of a leaf one after the other, leaves as a binary tree."""
    size, sums = -(-x.shape[1] // leaves), []
    for first in range(0, leaves * size, size):
        total = np.zeros((len(x), len(weight)), np.float32)
        for at in range(first, min(first + size, x.shape[1]), block):
            some = slice(at, min(at + block, first + size))
            right = np.ascontiguousarray(weight[:, some].numpy().T)
            total += np.einsum("mk,kn->mn", x[:, some].numpy(), right, optimize=False)  # ascending, number by number
        sums.append(torch.from_numpy(total))
    return tree_of(sums)


@pytest.mark.matrix
@pytest.mark.parametrize(("shape", "dtype", "leaves"), [
    (SHAPES[0], torch.float32, 8), (SHAPES[0], FP8, 4), (SHAPES[1], torch.int8, 8), (SHAPES[1], torch.float32, 2),
    (SHAPES[2], FP8, 1),
], ids=str)  # fmt: skip
def test_a_product_equals_that_in_fp64(shape: tuple[int, int], dtype: torch.dtype, leaves: int) -> None:
    n_out, n_in = shape
    x, weight = torch.randn(3, n_in), weight_of(shape, dtype)
    bias, residual, scales = torch.randn(n_out), torch.randn(3, n_out), torch.rand(n_out)
    is_scaled = dtype.itemsize == 1
    wide = weight.float().double() * (scales[:, None].double() if is_scaled else 1.0)
    expected = x.double() @ wide.T + bias + residual
    size = x.abs().double() @ wide.abs().T + bias.abs() + residual.abs()
    for tile in (
        None,
        replace(choose_tile(3, torch.float32, dtype), most_leaves=leaves),
    ):  # shared by programs, and by one
        out = poisoned(3, n_out + 1)[:, :n_out]  # rows with a gap between them
        matrix = Matrix(weight, scales if is_scaled else None, bias, leaves)
        multiply(x, matrix, out, tile=tile, residual=residual)
        assert bool(((out - expected).abs() <= size * n_in**0.5 * 2**-23).all())


@pytest.mark.cluster
@pytest.mark.parametrize("leaves", [1, 4, 8])
def test_sums_have_the_promised_order(leaves: int) -> None:
    x, weight = torch.randn(5, 700), torch.randn(64, 700)
    found = product(x, weight, leaves)
    assert same_bits(found, slow_product(x, weight, leaves))
    assert not torch.equal(found, slow_product(x, weight, leaves, 700)), "no order would be seen"


@pytest.mark.cluster
@pytest.mark.parametrize("n_parts", [1, 2, 3, 6])
def test_all_parts_of_a_sum_are_added(n_parts: int) -> None:
    sums, out = torch.randn(n_parts * 5, 70), torch.empty(5, 70)
    add_leaves(sums, out)
    assert torch.allclose(out, sums.view(n_parts, 5, 70).sum(0), atol=1e-5)


@pytest.mark.cluster
@pytest.mark.parametrize(("n_in", "dtype"), [(900, torch.float32), (1400, torch.int8)], ids=str)
def test_tiles_and_programs_change_no_bit(n_in: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row tiles 16 to 256, 64 or 128 outputs, and 1, 2, 4 or 8 programs for the leaves of an output."""
    x, weight = torch.randn(20, n_in), weight_of((70, n_in), dtype)
    base = choose_tile(20, torch.float32, dtype)
    expected = product(x, weight, INPUT_LEAVES, base)
    for rows in ROW_TILES:
        tile = choose_tile(20, torch.float32, dtype, rows)
        assert same_bits(product(x, weight, INPUT_LEAVES, tile), expected), f"{rows} rows"
    monkeypatch.setattr(gemm, "LEAST_GROUPS", 1)
    for most in (1, 2, 4, 8):
        tile = replace(base, outputs=128 if most == 2 else 64, most_leaves=most)
        assert tile.programs(20, 70, INPUT_LEAVES) == INPUT_LEAVES // most
        assert same_bits(product(x, weight, INPUT_LEAVES, tile), expected), f"{most} leaves a program"


@pytest.mark.cluster
@pytest.mark.parametrize("shards", [2, 4, 8])
def test_shards_of_a_weight_have_the_bits_of_the_whole(shards: int) -> None:
    """Shards of inputs are subtrees, added as a tree; shards of outputs have the leaves of the whole weight."""
    x, weight = torch.randn(3, 8 * 40), torch.randn(64, 8 * 40)
    inputs = zip(x.chunk(shards, 1), weight.chunk(shards, 1), strict=True)
    subtrees = [product(rows.contiguous(), its.contiguous(), INPUT_LEAVES // shards) for rows, its in inputs]
    assert same_bits(tree_of(subtrees), product(x, weight, INPUT_LEAVES))
    outputs = [product(x, its.contiguous(), 4) for its in weight.chunk(shards)]
    assert same_bits(torch.cat(outputs, 1), product(x, weight, 4))


def test_leaves_and_tiles_are_those_of_large_models() -> None:
    shapes = {"qkv of 8B": 6144, "gate_up of 8B": 28672, "qkv of 70B": 10240, "gate_up of 70B": 57344, "head": 128256}
    assert [choose_leaves(n_out) for n_out in shapes.values()] == [4, 1, 4, 1, 1]
    bf16, int8 = torch.bfloat16, torch.int8
    assert [choose_tile(n, bf16, bf16).rows for n in (1, 16, 17, 64, 65, 2048)] == [16, 16, 32, 64, 128, 128]
    assert [choose_tile(1, bf16, bf16).programs(1, n_out, 8) for n_out in (2048, 4096, 8192)] == [8, 4, 2]
    assert choose_tile(1, bf16, bf16, 64) == choose_tile(64, bf16, bf16)
    stages = [choose_tile(128, bf16, its, None, kib << 10).stages for its in (bf16, int8) for kib in (227, 163, 99)]
    assert stages == [4, 4, 3, 4, 3, 2], "what an H100, an A100 and a GeForce hold"


@pytest.mark.matrix
def test_many_rows_are_multiplied_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    x, matrix, stream = torch.randn(7, 1100), Matrix(torch.randn(64, 1100), None, None, 8), torch.randn(7, 64)
    at_once, pieces = poisoned(7, 64), poisoned(7, 64)
    multiply(x, matrix, at_once, residual=stream)
    monkeypatch.setattr(gemm, "MOST_ROWS", 3)
    multiply(x, matrix, pieces, residual=stream)
    assert same_bits(pieces, at_once)
    nothing = poisoned(4, 64)
    multiply(torch.empty(0, 1100), matrix, nothing[:0])
    assert same_bits(nothing, poisoned(4, 64))


@pytest.mark.cluster
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_leaves_are_added_as_a_tree_and_rounded_once_before_the_residual(dtype: torch.dtype) -> None:
    values, stream = torch.randn(20, 70) * 10.0 ** torch.randint(-3, 2, (1, 70)), torch.randn(5, 70).to(dtype)
    one, two, three, four = values.chunk(4)
    expected, out = ((one + two) + (three + four)).to(dtype), poisoned(5, 70, dtype=dtype)
    add_leaves(values, out)
    assert same_bits(out, expected)
    assert not torch.equal(((one + two) + three) + four, (one + two) + (three + four)), "no order would be seen"
    summed = stream + expected
    add_leaves(values, stream, residual=stream)
    assert same_bits(stream, summed)
