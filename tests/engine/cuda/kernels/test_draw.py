"""Tokens drawn and ids read back on the device are those of a CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.cuda.kernels.best import best_ids
from engine.cuda.kernels.draw import draw
from engine.cuda.kernels.truncation import Truncation
from engine.sampling.draw import draw_tokens
from engine.sampling.keys import NoiseKey
from engine.sampling.noise import gumbel_keys
from engine.sampling.params import SamplingParams
from engine.sampling.processors import process
from tests.engine.cuda.kernels.rows import poisoned

LONG = 2100  # ids: two chunks
TOP_K = (0, 1, 2, 5, 64, 10_000)
TOP_P = (1.0, 0.0, 0.5, 0.9, 1e-9, 0.999)
MIN_P = (0.0, 0.05, 1.0, 0.3)
TEMPERATURES = (0.7, 1.0, 0.0, 2.5, 0.01)


def hard_rows(vocab: int) -> Tensor:
    """Logits with ties, infinities and large values, ``[12, vocab]``."""
    rows = torch.randn(12, vocab) * 4
    rows[0] = 0.0  # all equal
    rows[1] = float("-inf")
    rows[1, vocab - 1] = -5.0  # one id left
    rows[2] = torch.randint(0, 3, (vocab,)).float()  # ties
    rows[3] = float("-inf")  # none left
    rows[4] = -torch.arange(vocab).float().sqrt()
    rows[5, ::2] = float("-inf")
    rows[6] = torch.where(torch.arange(vocab) % 2 == 0, 0.0, -0.0)
    rows[7] *= 1e4
    rows[8] = rows[8].bfloat16().float()  # a head in bf16
    rows[9, 1:] = rows[9, 0] - 26.0 - torch.rand(vocab - 1)  # as far down as noise reaches
    return rows


def params_of(n: int, seed: int, truncates: bool) -> list[SamplingParams]:
    chosen = np.random.default_rng(seed)
    return [
        SamplingParams(
            temperature=float(chosen.choice(TEMPERATURES)),
            top_k=int(chosen.choice(TOP_K)) if truncates else 0,
            top_p=float(chosen.choice(TOP_P)) if truncates else 1.0,
            min_p=float(chosen.choice(MIN_P)) if truncates else 0.0,
        )
        for _ in range(n)
    ]


def on_device(params: Sequence[SamplingParams]) -> Truncation:
    log_min_p = [math.log(p.min_p) if p.min_p else -math.inf for p in params]
    return Truncation(
        torch.tensor([p.top_k for p in params], dtype=torch.int32),
        torch.tensor([p.top_p for p in params], dtype=torch.float64),
        torch.tensor(log_min_p, dtype=torch.float64),
    )


def keys_of(params: Sequence[SamplingParams]) -> list[NoiseKey | None]:
    return [None if p.is_greedy else (2**63 + 7 * i, i % 2, 1000 + i) for i, p in enumerate(params)]


def temperatures_of(params: Sequence[SamplingParams]) -> Tensor:
    return torch.tensor([p.temperature for p in params])


def drawn(logits: Tensor, params: Sequence[SamplingParams], truncates: bool, mask: Tensor | None = None) -> list[int]:
    out = poisoned(len(params), dtype=torch.int32)
    keys = torch.from_numpy(gumbel_keys([key or (0, 0, 0) for key in keys_of(params)]))
    truncation = on_device(params) if truncates else None
    draw(logits, temperatures_of(params), keys, out, mask=mask, truncation=truncation)
    return [int(token) for token in out]


def scores_on_cpu(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    with np.errstate(invalid="ignore"):  # a row without any id, which top-p weighs
        return process(logits.float(), params, [None] * len(params))


@pytest.mark.parametrize(
    ("vocab", "dtype", "truncates"),
    [
        pytest.param(200, torch.float32, False, marks=pytest.mark.cluster),
        pytest.param(7, torch.float32, True, marks=pytest.mark.cluster),
        pytest.param(1, torch.float32, False, marks=pytest.mark.matrix),
        pytest.param(LONG, torch.bfloat16, False, marks=pytest.mark.matrix),
        pytest.param(LONG, torch.float32, True, marks=pytest.mark.matrix),
    ],
)
def test_tokens_are_those_of_a_cpu(vocab: int, dtype: torch.dtype, truncates: bool) -> None:
    torch.manual_seed(vocab)
    logits = hard_rows(vocab).to(dtype) if vocab > 1 else torch.zeros(12, 1, dtype=dtype)
    params = params_of(12, vocab + truncates, truncates)
    assert drawn(logits, params, truncates) == draw_tokens(scores_on_cpu(logits, params), keys_of(params))


TRUNCATIONS = st.tuples(
    st.sampled_from((0, 1, 2, 3, 9)), st.one_of(st.sampled_from(TOP_P), st.floats(0, 1)), st.sampled_from(MIN_P)
)


@pytest.mark.matrix
@given(st.lists(st.tuples(st.lists(st.integers(-6, 3), min_size=8, max_size=8), TRUNCATIONS), min_size=1, max_size=3))
def test_truncation_keeps_the_ids_that_a_cpu_keeps(rows: list[tuple[list[int], tuple[int, float, float]]]) -> None:
    """Few different scores: ties everywhere."""
    logits = torch.tensor([values for values, _ in rows], dtype=torch.float32)
    params = [SamplingParams(temperature=1.0, top_k=k, top_p=p, min_p=m) for _, (k, p, m) in rows]
    assert drawn(logits, params, True) == draw_tokens(process(logits, params, [None] * len(rows)), keys_of(params))


@pytest.mark.parametrize(
    ("vocab", "n"),
    [
        pytest.param(7, 7, marks=pytest.mark.cluster),
        pytest.param(300, 32, marks=pytest.mark.matrix),
        pytest.param(LONG, 8, marks=pytest.mark.matrix),
    ],
)
def test_best_ids_and_log_probabilities_are_those_of_a_sort(vocab: int, n: int) -> None:
    logits = hard_rows(vocab)
    asked = torch.tensor([3, -1, 0, -2, -1, 5, 0, 1, -2, 2, 6, -1], dtype=torch.int32)
    drawn = torch.arange(12, dtype=torch.int32) % 7
    drawn[11] = 0x7FFFFFFE  # no id has it
    table = poisoned(12, 2 * n + 2, dtype=torch.int32)
    ids, logprobs, of_asked = table[:, 1 : n + 1], table[:, n + 1 : -1].view(torch.float32), table[:, -1]
    best_ids(logits, n, asked, drawn, ids, logprobs, of_asked.view(torch.float32))
    read = asked != -2
    assert bool((table[~read] == -7).all()), "rows that no one asks for"
    assert of_asked.view(torch.float32)[11] == -math.inf
    read[11] = False
    tokens = torch.where(asked == -1, drawn, asked)[read].long()[:, None]
    expected = torch.sort(logits[read], dim=-1, descending=True, stable=True)
    assert torch.equal(ids[read].long(), expected.indices[:, :n])
    exact = torch.log_softmax(logits[read].double(), -1)
    close = {"rtol": 1e-6, "atol": 1e-5, "equal_nan": True}
    torch.testing.assert_close(logprobs[read].double(), exact.gather(-1, expected.indices[:, :n]), **close)
    torch.testing.assert_close(of_asked.view(torch.float32)[read].double()[:, None], exact.gather(-1, tokens), **close)


@pytest.mark.matrix
def test_nothing_is_drawn_from_rows_without_a_temperature() -> None:
    logits, out = torch.randn(3, 40), poisoned(3, 2, dtype=torch.int32)
    keys = torch.from_numpy(gumbel_keys([(1, 0, i) for i in range(3)]).astype(np.int32))  # their low bits are enough
    rules = Truncation(torch.full((3,), 5, dtype=torch.int32), torch.full((3,), 0.9, dtype=torch.float64), None)
    draw(logits, torch.tensor([-1.0, 1.0, 0.0]), keys, out[:, 0], truncation=rules)
    params = [SamplingParams(temperature=1.0, top_k=5, top_p=0.9)]
    (second,) = draw_tokens(process(logits[1:2], params, [None]), [(1, 0, 1)])
    assert out.tolist() == [[-7, -7], [second, -7], [int(logits[2].argmax()), -7]]


@pytest.mark.matrix
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_row_with_nan_draws_a_token_of_the_vocabulary(temperature: float) -> None:
    logits = torch.randn(2, 300)
    logits[0] = float("nan")
    logits[1, 7] = float("nan")
    out = torch.full((2,), -1, dtype=torch.int32)
    draw(logits, torch.full((2,), temperature), torch.zeros(2, 2, dtype=torch.int32), out)
    assert ((out >= 0) & (out < 300)).all()
