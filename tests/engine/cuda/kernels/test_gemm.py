"""Products: against fp64, and every row for itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.cuda.kernels import gemm
from engine.cuda.kernels.gemm import LEAST_INPUTS, LEAST_PROGRAMS, linear, tiling
from tests.engine.cuda.kernels.rows import assert_rows_alike, poisoned, same_bits

FP8 = torch.float8_e4m3fn
SHAPES = [(100, 90), (64, 1100), (6200, 70)]  # outputs, inputs: odd ones; inputs in two parts; tiles 128 wide
PRODUCTION = [
    (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096),
    (10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672), (128256, 8192),
]  # fmt: skip


def weight_of(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    random = torch.Generator().manual_seed(shape[0])
    if dtype == torch.int8:
        return torch.randint(-127, 128, shape, dtype=dtype, generator=random)
    return torch.randn(shape, generator=random).to(dtype)


def assert_summed(found: Tensor, expected: Tensor, size: Tensor, n_in: int) -> None:
    """Sums of ``n_in`` fp32 products, whose sizes add up to ``size``."""
    assert bool(((found - expected).abs() <= size * n_in**0.5 * 2**-23).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, FP8], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_equals_that_in_fp64(shape: tuple[int, int], dtype: torch.dtype) -> None:
    n_out, n_in = shape
    x, weight = torch.randn(3, n_in), weight_of(shape, dtype)
    bias, residual, scales = torch.randn(n_out), torch.randn(3, n_out), torch.rand(n_out)
    out = poisoned(3, n_out + 1)[:, :n_out]  # rows that do not lie one behind the other
    is_scaled = dtype.itemsize == 1
    linear(x, weight, out, bias=bias, residual=residual, scales=scales if is_scaled else None)
    wide = weight.float().double() * (scales[:, None].double() if is_scaled else 1.0)
    expected = x.double() @ wide.T + bias + residual
    assert_summed(out, expected, x.abs().double() @ wide.abs().T + bias.abs() + residual.abs(), n_in)
    plain, bare = poisoned(3, n_out), weight.float().double()
    linear(x, weight, plain)
    assert_summed(plain, x.double() @ bare.T, x.abs().double() @ bare.abs().T, n_in)


@pytest.mark.parametrize(("shape", "dtype"), [(SHAPES[0], torch.float32), (SHAPES[1], torch.float32), (SHAPES[0], FP8)])
def test_a_row_does_not_depend_on_others(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, weight = torch.randn(130, shape[1]), weight_of(shape, dtype)
    scales = torch.rand(shape[0]) if dtype == FP8 else None

    def compute(rows: Tensor) -> Tensor:
        out = poisoned(len(rows), shape[0])
        linear(x[rows], weight, out, scales=scales)
        return out

    assert_rows_alike(compute)


def test_a_product_may_be_added_where_its_residual_is() -> None:
    x, weight, stream = torch.randn(3, 90), torch.randn(100, 90), torch.randn(3, 100)
    expected = stream + x @ weight.T
    linear(x, weight, stream, residual=stream)
    torch.testing.assert_close(stream, expected)


def test_many_rows_of_a_weight_in_parts_are_taken_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, stream = torch.randn(7, 1100), torch.randn(64, 1100), torch.randn(7, 64)
    at_once, pieces = poisoned(7, 64), poisoned(7, 64)
    linear(x, weight, at_once, residual=stream)
    monkeypatch.setattr(gemm, "MOST_ROWS", 3)
    linear(x, weight, pieces, residual=stream)
    assert same_bits(pieces, at_once)


def test_products_of_no_rows_write_nothing() -> None:
    out = poisoned(4, 5)
    linear(torch.empty(0, 8), torch.randn(5, 8), out[:0])
    assert same_bits(out, poisoned(4, 5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("shape", PRODUCTION, ids=str)
def test_every_multiprocessor_reads(shape: tuple[int, int], dtype: torch.dtype) -> None:
    cut = tiling(*shape, dtype)
    assert -(-shape[0] // cut.block_n) * cut.parts >= LEAST_PROGRAMS
    assert shape[1] // cut.parts >= LEAST_INPUTS
    assert shape[1] % (cut.block_k * cut.parts) == 0
