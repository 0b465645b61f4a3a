"""Drawing on the device: the tokens, and what is kept of every row, are those of a CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.cuda.kernels import draw as kernel
from engine.cuda.kernels.best import MOST, best_ids
from engine.cuda.kernels.draw import draw
from engine.cuda.kernels.scores import Scored
from engine.cuda.kernels.truncation import Floors, Truncation, floors
from engine.sampling.draw import draw_tokens
from engine.sampling.keys import NoiseKey
from engine.sampling.noise import gumbel_keys
from engine.sampling.params import SamplingParams
from engine.sampling.processors import process
from engine.verify.masks import apply_masks
from tests.engine.cuda.kernels.rows import assert_rows_alike, poisoned, same_bits

LONG = 2100  # ids: two chunks
TOP_K = (0, 1, 2, 5, 64, 10_000)
TOP_P = (1.0, 0.0, 0.5, 0.9, 1e-9, 0.999)
MIN_P = (0.0, 0.05, 1.0, 0.3)
TEMPERATURES = (0.7, 1.0, 0.0, 2.5, 0.01)


def hard_rows(vocab: int) -> Tensor:
    """Logits that draw lots in their own ways, ``[12, vocab]``."""
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


def is_kept(scores: Tensor, found: Floors) -> Tensor:
    """``[rows, vocab]``."""
    values, last = found.values[:, None], found.ids[:, None]
    return (scores > values) | ((scores == values) & (torch.arange(scores.shape[1]) <= last))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tokens_are_those_of_a_cpu(dtype: torch.dtype) -> None:
    for vocab in (1, 7, 200, LONG):
        logits = hard_rows(vocab).to(dtype) if vocab > 1 else torch.zeros(12, 1, dtype=dtype)
        params = params_of(len(logits), vocab, truncates=False)
        assert drawn(logits, params, False) == draw_tokens(scores_on_cpu(logits, params), keys_of(params))


@pytest.mark.parametrize("vocab", [7, LONG])
def test_truncated_tokens_are_those_of_a_cpu(vocab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, params = hard_rows(vocab), params_of(12, vocab + 1, truncates=True)
    found: list[Floors] = []

    def seen(*given: object) -> Floors:
        found.append(floors(*given))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(kernel, "floors", seen)
    tokens = drawn(logits, params, True)
    scores = scores_on_cpu(logits, params)
    assert tokens == draw_tokens(scores, keys_of(params))
    hot = [i for i, p in enumerate(params) if not p.is_greedy]
    heated = logits / torch.tensor([p.temperature or 1.0 for p in params])[:, None]
    kept = is_kept(heated, found[0]) & (heated > -math.inf)
    assert torch.equal(kept[hot], (scores > -math.inf)[hot])


TRUNCATIONS = st.tuples(
    st.sampled_from((0, 1, 2, 3, 9)), st.one_of(st.sampled_from(TOP_P), st.floats(0, 1)), st.sampled_from(MIN_P)
)


@settings(max_examples=10)
@given(st.lists(st.tuples(st.lists(st.integers(-6, 3), min_size=8, max_size=8), TRUNCATIONS), min_size=1, max_size=3))
def test_what_is_kept_is_what_a_cpu_keeps(rows: list[tuple[list[int], tuple[int, float, float]]]) -> None:
    """Few different scores: ties everywhere."""
    logits = torch.tensor([values for values, _ in rows], dtype=torch.float32)
    params = [SamplingParams(temperature=1.0, top_k=k, top_p=p, min_p=m) for _, (k, p, m) in rows]
    assert drawn(logits, params, True) == draw_tokens(process(logits, params, [None] * len(rows)), keys_of(params))


@pytest.mark.parametrize("rules", ["top_k", "top_p", "log_min_p"])
def test_a_rule_that_no_row_has_may_be_left_out(rules: str) -> None:
    logits = hard_rows(60)[[0, 2, 8, 10]]
    given = {"top_k": {"top_k": 3}, "top_p": {"top_p": 0.6}, "log_min_p": {"min_p": 0.2}}[rules]
    params = [SamplingParams(temperature=1.0, **given)] * len(logits)  # type: ignore[arg-type]
    all_rules = on_device(params)
    out, keys = poisoned(4, dtype=torch.int32), torch.from_numpy(gumbel_keys([(1, 0, i) for i in range(4)]))
    draw(logits, torch.ones(4), keys, out, truncation=Truncation(**{rules: getattr(all_rules, rules)}))
    assert out.tolist() == draw_tokens(process(logits, params, [None] * 4), [(1, 0, i) for i in range(4)])


@pytest.mark.parametrize("truncates", [False, True])
def test_a_grammar_is_obeyed(truncates: bool) -> None:
    vocab = 70
    logits, params = hard_rows(vocab)[4:10], params_of(6, 3, truncates)
    words = np.random.default_rng(0).integers(0, 1 << 32, (6, 3), dtype=np.uint32)
    words[1] = 0
    words[1, 2] = 1 << 5  # id 69, the last one
    mask = torch.from_numpy(words.view(np.int32))
    masked = logits.clone()
    apply_masks(masked, range(6), list(words))
    tokens = drawn(logits, params, truncates, mask)
    assert tokens == draw_tokens(scores_on_cpu(masked, params), keys_of(params))
    assert tokens[1] == 69


def test_a_draw_does_not_depend_on_other_rows() -> None:
    logits = torch.randn(130, 40) * 3
    keys = torch.from_numpy(gumbel_keys([(3, 0, row) for row in range(130)]))

    def compute(rows: Tensor) -> Tensor:
        out = poisoned(len(rows), dtype=torch.int32)
        draw(logits[rows], torch.full((len(rows),), 0.8), keys[:, rows].contiguous(), out)
        return out

    assert_rows_alike(compute)


def test_a_floor_does_not_depend_on_other_rows() -> None:
    logits, temperatures = torch.randn(6, 40) * 3, torch.full((6,), 0.8)
    rules = Truncation(torch.full((6,), 20, dtype=torch.int32), torch.linspace(0.3, 0.95, 6, dtype=torch.float64), None)

    def compute(rows: Tensor) -> Tensor:
        assert rules.top_k is not None
        assert rules.top_p is not None
        best = torch.empty(len(rows), 1, dtype=torch.int64)
        its = Scored(logits[rows], temperatures[rows], None)
        kernel._best_chunks[its.grid](*its.tensors, best, *its.sizes, False, its.chunk, its.chunk)
        found = floors(its, best, Truncation(rules.top_k[rows], rules.top_p[rows]))
        return torch.stack((found.values.double(), found.ids.double()), -1)

    among = compute(torch.arange(6))
    assert torch.equal(compute(torch.tensor([4])), among[4:5])
    order = torch.tensor([5, 0, 3])
    assert torch.equal(compute(order), among[order])


@pytest.mark.parametrize(("vocab", "n"), [(7, 7), (300, 32), (LONG, 8)])
def test_best_ids_and_log_probabilities(vocab: int, n: int) -> None:
    logits = hard_rows(vocab)
    asked = torch.tensor([3, -1, 0, -2, -1, 5, 0, 1, -2, 2, 6, -1], dtype=torch.int32)
    drawn = torch.arange(12, dtype=torch.int32) % 7
    drawn[11] = 0x7FFFFFFE  # what no id has
    table = poisoned(12, 2 * n + 2, dtype=torch.int32)
    ids, logprobs, of_asked = table[:, 1 : n + 1], table[:, n + 1 : -1].view(torch.float32), table[:, -1]
    best_ids(logits, n, asked, drawn, ids, logprobs, of_asked.view(torch.float32))
    told = asked != -2
    assert bool((table[~told] == -7).all()), "rows of which nothing is told"
    assert of_asked.view(torch.float32)[11] == -math.inf
    told[11] = False
    tokens = torch.where(asked == -1, drawn, asked)[told].long()[:, None]
    expected = torch.sort(logits[told], dim=-1, descending=True, stable=True)
    assert torch.equal(ids[told].long(), expected.indices[:, :n])
    wanted = torch.log_softmax(logits[told].double(), -1)
    close = {"rtol": 1e-6, "atol": 1e-5, "equal_nan": True}
    torch.testing.assert_close(logprobs[told].double(), wanted.gather(-1, expected.indices[:, :n]), **close)
    torch.testing.assert_close(of_asked.view(torch.float32)[told].double()[:, None], wanted.gather(-1, tokens), **close)


def told_of(logits: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Best ids and their log-probabilities."""
    ids, logprobs = poisoned(len(logits), n, dtype=torch.int32), poisoned(len(logits), n)
    asked = torch.zeros(len(logits), dtype=torch.int32)
    best_ids(logits, n, asked, asked, ids, logprobs, poisoned(len(logits)))
    return ids, logprobs


def test_best_ids_are_those_that_a_cpu_reads_back() -> None:
    from engine.stage.logit_readback import _top

    logits = torch.randn(3, 500)  # no ties, whose order a CPU leaves open
    ids, logprobs = told_of(logits, 16)
    read_ids, wanted = _top(logits, 16, True)
    assert torch.equal(ids, read_ids)
    torch.testing.assert_close(logprobs, wanted)


def test_log_probabilities_do_not_depend_on_other_rows() -> None:
    logits = torch.randn(9, LONG) * 3
    among, order = told_of(logits, 2)[1], torch.tensor([8, 0, 3])
    assert same_bits(told_of(logits[4:5], 2)[1], among[4:5])
    assert same_bits(told_of(logits[order], 2)[1], among[order])


@pytest.mark.parametrize("n", [0, 8, MOST + 1])
def test_as_many_best_ids_as_there_are(n: int) -> None:
    with pytest.raises(ValueError, match=f"{n} best ids are asked for; it must be from 1 to 7"):
        told_of(torch.zeros(1, 7), n)


def test_nothing_is_drawn_from_rows_without_a_temperature() -> None:
    logits, out = torch.randn(3, 40), poisoned(3, 2, dtype=torch.int32)
    keys = torch.from_numpy(gumbel_keys([(1, 0, i) for i in range(3)]).astype(np.int32))  # their low bits are enough
    rules = Truncation(torch.full((3,), 5, dtype=torch.int32), torch.full((3,), 0.9, dtype=torch.float64), None)
    draw(logits, torch.tensor([-1.0, 1.0, 0.0]), keys, out[:, 0], truncation=rules)
    params = [SamplingParams(temperature=1.0, top_k=5, top_p=0.9)]
    (second,) = draw_tokens(process(logits[1:2], params, [None]), [(1, 0, 1)])
    assert out.tolist() == [[-7, -7], [second, -7], [int(logits[2].argmax()), -7]]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_row_with_numbers_that_are_none_draws_a_token_of_the_vocabulary(temperature: float) -> None:
    logits = torch.randn(2, 300)
    logits[0] = float("nan")
    logits[1, 7] = float("nan")
    out = torch.full((2,), -1, dtype=torch.int32)
    draw(logits, torch.full((2,), temperature), torch.zeros(2, 2, dtype=torch.int32), out)
    assert ((out >= 0) & (out < 300)).all()
