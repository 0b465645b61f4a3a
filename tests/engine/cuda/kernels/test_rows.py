"""Every kernel computes a row with the same bits whatever other rows it runs with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engine.cuda.kernels import draw as draw_kernel
from engine.cuda.kernels.activation import apply_gate
from engine.cuda.kernels.best import best_ids
from engine.cuda.kernels.draw import draw
from engine.cuda.kernels.gemm import multiply
from engine.cuda.kernels.norm import rms_norm
from engine.cuda.kernels.rope import rotate_and_write
from engine.cuda.kernels.scores import Scored
from engine.cuda.kernels.truncation import Truncation, floors
from engine.cuda.operands import Heads, Matrix, Norm, RotaryFrequencies
from engine.sampling.noise import gumbel_keys
from tests.engine.cuda.kernels.rows import assert_rows_alike, poisoned

Compute = Callable[[Tensor], Tensor]
FP8 = torch.float8_e4m3fn


def norms(n: int) -> Compute:
    x, norm, stream = torch.randn(n, 100), Norm(torch.randn(100), 1e-6), torch.randn(n, 100)

    def compute(rows: Tensor) -> Tensor:
        out, sums = poisoned(len(rows), 100), stream[rows]
        rms_norm(x[rows], norm, out)
        rms_norm(x[rows], norm, sums, residual=sums)
        return torch.cat((out, sums), -1)

    return compute


def activations(n: int) -> Compute:
    x = torch.randn(n, 100)

    def compute(rows: Tensor) -> Tensor:
        out = poisoned(len(rows), 50)
        apply_gate(x[rows], out, "silu")
        return out

    return compute


def rope(n: int) -> Compute:
    qkv, positions = torch.randn(n, 5 * 8), torch.randint(0, 9999, (n,), dtype=torch.int32)
    rotary, norm = RotaryFrequencies(1e4 ** -torch.arange(0, 1, 0.25), 1.0), Norm(torch.randn(8), 1e-6)

    def compute(rows: Tensor) -> Tensor:
        q, k, v = poisoned(len(rows), 3 * 8), poisoned(len(rows), 1, 8), poisoned(len(rows), 1, 8)
        slots = torch.arange(len(rows), dtype=torch.int32)
        rotate_and_write(qkv[rows], positions[rows], slots, rotary, Heads(3, 1, 8, 1.0), (norm, norm), q, k, v)
        return torch.cat((q, k[:, 0], v[:, 0]), -1)

    return compute


def products(n: int, shape: tuple[int, int] = (100, 90), dtype: torch.dtype = torch.float32) -> Compute:
    x, weight = torch.randn(n, shape[1]), torch.randn(shape).to(dtype)
    scales = torch.rand(shape[0]) if dtype == FP8 else None
    matrix = Matrix(weight, scales, None, leaves=8 if shape[1] > 1000 else 2)

    def compute(rows: Tensor) -> Tensor:
        out = poisoned(len(rows), shape[0])
        multiply(x[rows], matrix, out)
        return out

    return compute


def draws(n: int) -> Compute:
    logits, keys = torch.randn(n, 40) * 3, torch.from_numpy(gumbel_keys([(3, 0, row) for row in range(n)]))

    def compute(rows: Tensor) -> Tensor:
        out = poisoned(len(rows), dtype=torch.int32)
        draw(logits[rows], torch.full((len(rows),), 0.8), keys[:, rows].contiguous(), out)
        return out

    return compute


def truncations(n: int) -> Compute:
    """The lowest score that top-k and top-p keep."""
    logits, temperatures = torch.randn(n, 40) * 3, torch.full((n,), 0.8)
    top_k, top_p = torch.full((n,), 20, dtype=torch.int32), torch.linspace(0.3, 0.95, n, dtype=torch.float64)

    def compute(rows: Tensor) -> Tensor:
        best = torch.empty(len(rows), 1, dtype=torch.int64)
        scored = Scored(logits[rows], temperatures[rows], None)
        draw_kernel._best_chunks[scored.grid](*scored.tensors, best, *scored.sizes, False, scored.chunk, scored.chunk)
        found = floors(scored, best, Truncation(top_k[rows], top_p[rows]))
        return torch.stack((found.values.double(), found.ids.double()), -1)

    return compute


def log_probabilities(n: int) -> Compute:
    logits = torch.randn(n, 2100) * 3  # two chunks

    def compute(rows: Tensor) -> Tensor:
        ids, logprobs = poisoned(len(rows), 2, dtype=torch.int32), poisoned(len(rows), 2)
        asked = torch.zeros(len(rows), dtype=torch.int32)
        best_ids(logits[rows], 2, asked, asked, ids, logprobs, poisoned(len(rows)))
        return logprobs

    return compute


QUICK = {norms: 65, activations: 65, rope: 65, products: 65, draws: 65, truncations: 6}


@pytest.mark.cluster
@pytest.mark.parametrize("kernel", QUICK, ids=lambda one: one.__name__)
def test_a_row_has_the_same_bits_among_a_few_rows(kernel: Callable[[int], Compute]) -> None:
    torch.manual_seed(1)
    assert_rows_alike(kernel(QUICK[kernel]), QUICK[kernel])


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("compute", "n_rows"),
    [
        *((kernel(130), 130) for kernel in (norms, activations, rope, products, draws)),
        (products(130, (64, 1100)), 130),  # leaves of several blocks
        (products(130, dtype=FP8), 130),
        (log_probabilities(9), 9),
    ],
)
def test_a_row_has_the_same_bits_among_many_rows(compute: Compute, n_rows: int) -> None:
    assert_rows_alike(compute, n_rows)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="kind is 'relu'; it must be one of silu, gelu_tanh"):
        apply_gate(torch.zeros(1, 4), torch.zeros(1, 2), "relu")
    asked = torch.zeros(1, dtype=torch.int32)
    for n in (0, 8, 65):
        with pytest.raises(ValueError, match=f"{n} best ids are asked for; it must be from 1 to 7"):
            best_ids(torch.zeros(1, 7), n, asked, asked, poisoned(1, n, dtype=torch.int32), poisoned(1, n), poisoned(1))
