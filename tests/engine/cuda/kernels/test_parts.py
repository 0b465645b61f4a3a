"""A kernel that adds up a product's parts leaves the bits of one that reads their sum, rounded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.cuda.kernels import gemm
from engine.cuda.kernels.activation import gated
from engine.cuda.kernels.gemm import multiply
from engine.cuda.kernels.norm import rms_norm
from engine.cuda.kernels.parts import Parts, sum_parts
from engine.cuda.kernels.rope import rope_write
from tests.engine.cuda.kernels.rows import assert_rows_alike, poisoned, same_bits

DTYPES = [torch.float32, torch.float16]
N_ROWS = 5


def in_parts(width: int, n_parts: int = 3) -> Parts:
    """Numbers whose sum depends on its order."""
    return Parts(torch.randn(n_parts * N_ROWS, width) * 10.0 ** torch.randint(-3, 2, (1, width)), n_parts)


def finished(product: Parts, dtype: torch.dtype) -> Tensor:
    out = poisoned(N_ROWS, product.values.shape[1], dtype=dtype)
    sum_parts(product, out)
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts_are_added_from_the_first_to_the_last_and_rounded_once(dtype: torch.dtype) -> None:
    product = in_parts(70)
    one, two, three = product.values.chunk(3)
    expected = ((one + two) + three).to(dtype)
    assert same_bits(finished(product, dtype), expected)
    assert not torch.equal(one + (two + three), (one + two) + three)  # or no order would be seen


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_residual_is_added_to_the_rounded_sum(dtype: torch.dtype) -> None:
    product, stream = in_parts(70), torch.randn(N_ROWS, 70).to(dtype)
    expected = stream + finished(product, dtype)
    sum_parts(product, stream, stream)
    assert same_bits(stream, expected)


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_norm(dtype: torch.dtype, adds: bool) -> None:
    product, weight, stream = in_parts(100), torch.randn(100).to(dtype), torch.randn(N_ROWS, 100).to(dtype)
    found = []
    for x in (product, finished(product, dtype)):
        out, before = poisoned(N_ROWS, 100, dtype=dtype), stream.clone()
        rms_norm(x, weight, out, 1e-5, residual=before if adds else None)
        found.append(torch.cat((out, before), 1))
    assert same_bits(*found)


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gated_activation(dtype: torch.dtype, kind: str) -> None:
    product, found = in_parts(2 * 1100), []
    for x in (product, finished(product, dtype)):
        found.append(poisoned(N_ROWS, 1100, dtype=dtype))
        gated(x, found[-1], kind)
    assert same_bits(*found)


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rope(dtype: torch.dtype, has_norm: bool) -> None:
    heads, kv_heads, dim = 6, 2, 20
    product, weight = in_parts((heads + 2 * kv_heads) * dim), torch.randn(dim).to(dtype) if has_norm else None
    positions, slots = torch.arange(0, 50, 10, dtype=torch.int32), torch.tensor([5, 1, 4, 2, 0], dtype=torch.int32)
    found = []
    for x in (product, finished(product, dtype)):
        query = poisoned(N_ROWS, heads * dim, dtype=dtype)
        keys, values = (poisoned(6, kv_heads, dim, dtype=dtype) for _ in range(2))
        rope_write(
            x, positions, slots, 1e4 ** -torch.arange(0, 1, 0.1), query, keys, values,
            heads=heads, kv_heads=kv_heads, head_dim=dim, q_norm=weight, k_norm=weight,
        )  # fmt: skip
        found.append(torch.cat([one.flatten() for one in (query, keys, values)]))
    assert same_bits(*found)


def test_a_row_in_parts_does_not_depend_on_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "LEAST_INPUTS", 64)
    x, weight, bias = torch.randn(130, 260), torch.randn(48, 260), torch.randn(48)
    factors, stream = torch.randn(48), torch.randn(130, 48)

    def compute(rows: Tensor) -> Tensor:
        product = multiply(x[rows], weight, bias=bias)
        assert product.n_parts == 4
        out, before = poisoned(len(rows), 48), stream[rows]
        rms_norm(product, factors, out, 1e-5, residual=before)
        return torch.cat((out, before), 1)

    assert_rows_alike(compute)
