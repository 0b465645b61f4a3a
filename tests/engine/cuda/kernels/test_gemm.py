"""Products equal those in fp64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.cuda.kernels import gemm
from engine.cuda.kernels.gemm import linear
from engine.cuda.kernels.parts import Parts, sum_parts
from tests.engine.cuda.kernels.rows import poisoned, same_bits

pytestmark = pytest.mark.matrix
FP8 = torch.float8_e4m3fn
SHAPES = [(100, 90), (64, 1100), (6200, 70)]  # outputs, inputs: odd ones; inputs in two parts; tiles 128 wide


def weight_of(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    random = torch.Generator().manual_seed(shape[0])
    if dtype == torch.int8:
        return torch.randint(-127, 128, shape, dtype=dtype, generator=random)
    return torch.randn(shape, generator=random).to(dtype)


def assert_summed(found: Tensor, expected: Tensor, size: Tensor, n_in: int) -> None:
    """Sums of ``n_in`` fp32 products, whose sizes add up to ``size``."""
    assert bool(((found - expected).abs() <= size * n_in**0.5 * 2**-23).all())


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (SHAPES[0], torch.float32),
        (SHAPES[0], FP8),
        (SHAPES[1], torch.int8),
        (SHAPES[1], torch.float32),
        (SHAPES[2], FP8),
    ],
    ids=str,
)
def test_a_product_equals_that_in_fp64(shape: tuple[int, int], dtype: torch.dtype) -> None:
    n_out, n_in = shape
    x, weight = torch.randn(3, n_in), weight_of(shape, dtype)
    bias, residual, scales = torch.randn(n_out), torch.randn(3, n_out), torch.rand(n_out)
    out = poisoned(3, n_out + 1)[:, :n_out]  # rows with a gap between them
    is_scaled = dtype.itemsize == 1
    linear(x, weight, out, bias=bias, residual=residual, scales=scales if is_scaled else None)
    wide = weight.float().double() * (scales[:, None].double() if is_scaled else 1.0)
    expected = x.double() @ wide.T + bias + residual
    assert_summed(out, expected, x.abs().double() @ wide.abs().T + bias.abs() + residual.abs(), n_in)
    plain, bare = poisoned(3, n_out), weight.float().double()
    linear(x, weight, plain)
    assert_summed(plain, x.double() @ bare.T, x.abs().double() @ bare.abs().T, n_in)


def test_a_product_is_added_to_its_residual_in_place() -> None:
    x, weight, stream = torch.randn(3, 90), torch.randn(100, 90), torch.randn(3, 100)
    expected = stream + x @ weight.T
    linear(x, weight, stream, residual=stream)
    torch.testing.assert_close(stream, expected)


def test_many_rows_are_multiplied_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, stream = torch.randn(7, 1100), torch.randn(64, 1100), torch.randn(7, 64)
    at_once, pieces = poisoned(7, 64), poisoned(7, 64)
    linear(x, weight, at_once, residual=stream)
    monkeypatch.setattr(gemm, "MOST_ROWS", 3)
    linear(x, weight, pieces, residual=stream)
    assert same_bits(pieces, at_once)
    nothing = poisoned(4, 5)
    linear(torch.empty(0, 8), torch.randn(5, 8), nothing[:0])
    assert same_bits(nothing, poisoned(4, 5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_parts_are_added_in_order_and_rounded_once_before_the_residual(dtype: torch.dtype) -> None:
    values, stream = torch.randn(15, 70) * 10.0 ** torch.randint(-3, 2, (1, 70)), torch.randn(5, 70).to(dtype)
    one, two, three = values.chunk(3)
    expected, out = ((one + two) + three).to(dtype), poisoned(5, 70, dtype=dtype)
    sum_parts(Parts(values, 3), out)
    assert same_bits(out, expected)
    assert not torch.equal(one + (two + three), (one + two) + three)  # or no order would be seen
    summed = stream + expected
    sum_parts(Parts(values, 3), stream, stream)
    assert same_bits(stream, summed)
