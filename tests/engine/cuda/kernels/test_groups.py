"""Products by weights with scale groups equal those in fp64, and their sums have one order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.cuda.kernels import gemm
from engine.cuda.kernels.gemm import choose_tile, multiply
from engine.cuda.kernels.leaves import _widen_halves
from engine.cuda.operands import Matrix
from engine.cuda.products import Products
from engine.model.matrices.groups import CENTRE, ScaleGroups, pack, unpack, widen
from tests.engine.cuda.kernels.rows import assert_rows_alike, poisoned, same_bits
from tests.engine.cuda.kernels.test_gemm import FP8, tree_of

INT4, INT8 = torch.uint8, torch.int8


def make_matrix(
    n_out: int, n_in: int, size: int, dtype: torch.dtype, leaves: int, has_zeros: bool = False, scale: str = "float32"
) -> Matrix:
    """A random matrix with scale groups; ``uint8`` is packed int4."""
    random = torch.Generator().manual_seed(n_out + size)
    shape = n_out, -(-n_in // size)
    least, most = (-8, 8) if dtype == INT4 else (-127, 128)
    numbers = torch.randint(least, most, (n_out, shape[1] * size), generator=random).to(
        INT8 if dtype == INT4 else dtype
    )
    zeros = torch.randint(least, most, shape, generator=random, dtype=torch.int16) if has_zeros else None
    scales = (torch.rand(shape, generator=random) + 0.1).to(getattr(torch, scale))
    weight = pack(numbers, size) if dtype == INT4 else numbers
    return Matrix(weight, None, None, leaves, groups=ScaleGroups(scales, zeros, size, n_in))


def product(x: Tensor, matrix: Matrix, row_tile: int | None = None) -> Tensor:
    out = poisoned(len(x), len(matrix.weight))
    multiply(x, matrix, out, row_tile=row_tile)
    return out


def weights_of(matrix: Matrix) -> Tensor:
    assert matrix.groups is not None
    return widen(matrix.weight, matrix.groups, torch.float32)


def columns_of(matrix: Matrix, first: int, last: int) -> Matrix:
    """Inputs ``first`` to ``last - 1`` of a matrix that is not packed or whose groups are cut at their edges."""
    assert matrix.groups is not None
    groups, some = matrix.groups.columns(first, last)
    width = matrix.weight.shape[1] // matrix.groups.scales.shape[1]
    weight = matrix.weight[:, some.start * width : some.stop * width].contiguous()
    return replace(matrix, weight=weight, groups=groups)


@pytest.mark.matrix
@pytest.mark.parametrize(("shape", "size", "dtype", "leaves", "has_zeros", "scale"), [
    ((70, 256), 128, INT4, 1, False, "float16"), ((20, 200), 64, INT4, 2, True, "float32"),
    ((64, 160), 32, INT4, 8, True, "bfloat16"), ((33, 200), 32, INT8, 4, True, "float32"),
    ((20, 300), 128, INT8, 1, False, "bfloat16"), ((70, 300), 128, FP8, 8, False, "float32"),
], ids=str)  # fmt: skip
def test_products_equal_those_in_fp64(
    shape: tuple[int, int], size: int, dtype: torch.dtype, leaves: int, has_zeros: bool, scale: str
) -> None:
    """Groups are cut by leaves, and the last one may be short."""
    n_out, n_in = shape
    matrix = replace(make_matrix(n_out, n_in, size, dtype, leaves, has_zeros, scale), bias=torch.randn(n_out))
    x, residual, out = torch.randn(3, n_in), torch.randn(3, n_out), poisoned(3, n_out)
    multiply(x, matrix, out, residual=residual)
    wide, bias = weights_of(matrix).double(), matrix.bias
    assert bias is not None
    expected = x.double() @ wide.T + bias + residual
    largest = x.abs().double() @ wide.abs().T + bias.abs() + residual.abs()
    assert bool(((out - expected).abs() <= largest * n_in**0.5 * 2**-22).all())


def slow_leaf(x: Tensor, matrix: Matrix, begin: int, end: int) -> Tensor:
    """The sum of a leaf in the promised order: group by group, a packed group in two halves."""
    groups = matrix.groups
    assert groups is not None
    is_packed = matrix.weight.dtype == INT4
    numbers = (unpack(matrix.weight, groups.size) if is_packed else matrix.weight).float()
    total = np.zeros((len(x), len(numbers)), np.float32)
    for number in range(groups.scales.shape[1]):
        part, zero = np.zeros_like(total), 0 if groups.zeros is None else groups.zeros[:, number : number + 1]
        for half in range(2) if is_packed else range(1):
            width = groups.size // 2 if is_packed else groups.size
            first = number * groups.size + half * width
            some = slice(max(first, begin), max(first, min(first + width, end)))
            right = np.ascontiguousarray((numbers[:, some] - zero).numpy().T)
            part = np.einsum("mk,kn->mn", x[:, some].numpy(), right, optimize=False) + part
        total += part * groups.scales[:, number].float().numpy()
    return torch.from_numpy(total)


@pytest.mark.cluster
@pytest.mark.parametrize(("dtype", "leaves"), [(INT4, 4), (INT8, 8)], ids=str)
def test_groups_are_summed_in_the_promised_order(dtype: torch.dtype, leaves: int) -> None:
    """Leaves of 100 or 50 inputs cut groups of 64."""
    x, matrix = torch.randn(5, 400), make_matrix(20, 400, 64, dtype, leaves, has_zeros=True)
    size = 400 // leaves
    expected = tree_of([slow_leaf(x, matrix, first, first + size) for first in range(0, 400, size)])
    assert same_bits(product(x, matrix), expected)
    assert not torch.equal(slow_leaf(x, matrix, 0, 400), expected), "no order would be seen"


@pytest.mark.cluster
def test_tiles_programs_and_other_rows_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    x, matrix = torch.randn(20, 256), make_matrix(70, 256, 64, INT4, 8)
    expected = product(x, matrix)
    for rows in (32, 128):
        assert same_bits(product(x, matrix, rows), expected), f"{rows} rows"
    monkeypatch.setattr(gemm, "LEAST_GROUPS", 1)
    assert same_bits(product(x, matrix), expected), "fewer programs"
    assert_rows_alike(lambda rows: product(x[rows], matrix), len(x))


@pytest.mark.cluster
@pytest.mark.parametrize("shards", [2, 4])
def test_ranks_that_cut_groups_have_the_bits_of_the_whole(shards: int) -> None:
    """Ranks have 96 or 48 of the inputs, so most of them begin inside a group of 64."""
    x, matrix = torch.randn(3, 192), make_matrix(20, 192, 64, INT4, 8, has_zeros=True)
    size, sums = 192 // shards, []
    for first in range(0, 192, size):
        part = replace(columns_of(matrix, first, first + size), leaves=8 // shards)
        sums.append(product(x[:, first : first + size].contiguous(), part))
    assert same_bits(tree_of(sums), product(x, matrix))


@pytest.mark.cluster
def test_sums_of_ranks_have_group_scales_and_the_library_multiplies_no_numbers() -> None:
    x, matrix = torch.randn(3, 128), replace(make_matrix(20, 128, 64, FP8, 8), bias=torch.randn(20))
    expected = product(x, replace(matrix, bias=None))
    assert same_bits(Products(by_library=True)._multiply_partly(x, matrix, False), expected)
    assert torch.allclose(Products(by_library=True).multiply(x, matrix), expected + matrix.bias)


@triton.jit  # type: ignore[untyped-decorator]
def _widen_one(halves, zeros, out):  # type: ignore[no-untyped-def]
    at = tl.arange(0, 16)
    zero = tl.load(zeros + at).to(tl.float32)[:, None]
    number = tl.load(halves + at)[None, :]
    tl.store(out + at[:, None] * 16 + at[None, :], _widen_halves(number, zero, out.dtype.element_ty, True))


@pytest.mark.cluster
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_halves_of_bytes_are_widened_exactly(dtype: torch.dtype) -> None:
    halves, zeros, out = torch.arange(16), torch.arange(16) - CENTRE, poisoned(16, 16, dtype=dtype)
    _widen_one[(1,)](halves.to(INT4), zeros.to(torch.int16), out)
    assert torch.equal(out, (halves[None, :] - CENTRE - zeros[:, None]).to(dtype))


def test_tiles_take_a_group_at_a_time() -> None:
    bf16 = torch.bfloat16
    for size in (32, 64, 128):
        for dtype in (INT4, INT8, FP8):
            for rows in (1, 64, 512):
                tile = choose_tile(rows, bf16, dtype, None, 99 << 10, size)
                held = tile.inputs * (tile.outputs * (1 if dtype != INT4 else 0.5) + tile.rows * 2) * tile.stages
                assert (tile.inputs, held <= 99 << 10) == (size, True)
