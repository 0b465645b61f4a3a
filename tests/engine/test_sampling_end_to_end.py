"""Sampled text depends on model, prompt, parameters and seed alone: not on drafts, batch or stages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from engine.events import STOP
from engine.loop import Completion
from engine.request import Request
from engine.sampling.params import SamplingParams
from speculators.successors.config import SuccessorConfig
from speculators.successors.speculator import Successors
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.tiny_models import random_prompts, reference_tokens, tiny_model

QUICK = ("pld+spectra-core", "always-wrong", "always-right")
METHODS = (*QUICK, "suffix+token-recycling", "spectra-core", "token-recycling")
MARKED = [pytest.param(method, marks=[pytest.mark.matrix] * (method not in QUICK)) for method in METHODS]
N_TOKENS = 16
HOT = {"temperature": 0.9, "seed": 3}
THIRDS = tuple(range(0, 97, 3))


def job(prompt: list[int], method: str = "autoregressive", **params: Any) -> Request:
    return Request(prompt, SamplingParams(max_tokens=N_TOKENS, **params), method)


def texts_of(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


def test_state_learnt_from_earlier_requests_changes_no_text() -> None:
    sources = ("suffix", "token-recycling")
    jobs = [job(text, "warm", temperature=0.8, seed=seed) for text in random_prompts(2) for seed in (1, 2)]
    plain = [msgspec.structs.replace(one, method="autoregressive") for one in jobs]
    warm = {"warm": lambda _: Successors(SuccessorConfig(shared=True, least=0.0), sources)}
    engine = make_engine(make_target("qwen3"), extra=warm)
    first, second = (complete_all(engine, jobs, 2) for _ in range(2))
    assert texts_of(first) == texts_of(second) == texts_of(complete_all(make_engine(make_target("qwen3")), plain))
    accepted = [sum(completion.stats.accepted_tokens for completion in done) for done in (first, second)]
    assert accepted[1] > accepted[0]


def test_a_temperature_too_small_to_divide_by_is_greedy() -> None:
    for temperature in (0.0, 9.99e-6, 1e-6, 1e-30, 2.2e-308, 5e-324):
        params = SamplingParams(temperature=temperature, seed=5)
        assert params == SamplingParams(seed=5)
        encoded = msgspec.msgpack.encode({"temperature": temperature})
        assert msgspec.msgpack.decode(encoded, type=SamplingParams).is_greedy
    style: dict[str, Any] = {"repetition_penalty": 1.3, "logit_bias": {9: 2.0, 8: -100.0}, "top_p": 0.9, "logprobs": 3}
    (prompt,) = random_prompts(1)
    done = [
        complete_all(
            make_engine(make_target("qwen3")),
            [
                job(prompt, "suffix+token-recycling", temperature=heat, verification=rule, seed=5, **shifted)
                for heat in (temperature, 0.8)
                for rule in ("coupled", "rejection")
                for shifted in ({}, style)
            ],
        )
        for temperature in (0.0, 5e-324)
    ]
    assert texts_of(done[0]) == texts_of(done[1])
    assert [one.logprobs for one in done[0]] == [one.logprobs for one in done[1]]
    least = job(prompt, temperature=1e-5, seed=5)
    assert not least.params.is_greedy
    (sampled,) = complete_all(make_engine(make_target("qwen3")), [least])
    assert sampled.token_ids == done[0][0].token_ids, "no noise is large enough to change the argmax"


def test_seed_and_choice_decide_the_text() -> None:
    keys = [{"seed": 1}, {"seed": 1}, {"seed": 2}, {"seed": 1, "choice": 1}, {"seed": 2**64 - 1}]
    done = complete_all(
        make_engine(make_target("qwen3")), [job(random_prompts(1)[0], "pld", temperature=1.0, **key) for key in keys]
    )
    first, again, *others = texts_of(done)
    assert first == again
    assert len({tuple(text) for text in [first, *others]}) == 4


def test_bias_stop_ids_min_tokens_and_top_k_are_obeyed() -> None:
    text = random_prompts(1)[0]
    styles: list[dict[str, Any]] = [
        {"logit_bias": {7: 4.0, 8: -100.0}},
        {"min_tokens": 8, "stop_ids": THIRDS},
        {"stop_ids": THIRDS},
        {"temperature": 1.5, "top_k": 5},
    ]
    jobs = [job(text, "spectra-core", **{**HOT, **style}) for style in styles]
    biased, late, stopped, few = complete_all(make_engine(make_target("qwen3")), jobs)
    assert 8 not in biased.token_ids
    assert 7 in biased.token_ids
    for done, least in ((late, 9), (stopped, 1)):
        assert done.finish_reason == STOP
        assert done.token_ids[-1] in THIRDS
        assert not set(done.token_ids[:-1]) & set(THIRDS)
        assert len(done.token_ids) >= least
    logits = scores(tiny_model("qwen3"), text, few.token_ids)
    assert all(token in row.topk(5).indices for token, row in zip(few.token_ids, logits, strict=True))


@pytest.mark.parametrize("method", MARKED)
def test_rejection_verification_is_reproducible_and_greedy_at_temperature_zero(method: str) -> None:
    texts = random_prompts(3)
    answers = {tuple(text): reference_tokens("gemma3", tuple(text), N_TOKENS) for text in texts}
    sampled = [job(text, method, **HOT, verification="rejection", top_p=0.9) for text in texts]
    greedy = [job(text, method, verification="rejection") for text in texts]
    one, two = (
        texts_of(complete_all(make_engine(make_target("gemma3", stages=stages), answers), [*sampled, *greedy], 3))
        for stages in (1, 2)
    )
    assert one == two
    assert all(len(text) == N_TOKENS for text in one)
    assert one[3:] == list(answers.values())


def scores(model: Any, prompt: list[int], output: list[int]) -> torch.Tensor:
    """Log-probabilities at every output token, ``[n_output, vocab]``."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.float(), dim=-1)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("autoregressive", HOT),
        ("always-right", {}),
        ("always-wrong", {**HOT, "repetition_penalty": 1.3, "top_k": 4}),
        ("pld+spectra-core", HOT),
    ],
)
def test_logprobs_are_those_of_a_direct_forward(method: str, params: dict[str, Any]) -> None:
    texts, ks = random_prompts(3), (3, 0, None)
    plain = texts_of(complete_all(make_engine(make_target("gemma3")), [job(text, **params) for text in texts]))
    answers = {tuple(text): answer for text, answer in zip(texts, plain, strict=True)}
    engine = make_engine(make_target("gemma3", stages=2), answers)
    done = complete_all(engine, [job(text, method, **params, logprobs=k) for text, k in zip(texts, ks, strict=True)])
    assert texts_of(done) == plain
    assert done.pop().logprobs is None
    for text, completion, k in zip(texts, done, ks, strict=False):
        table = scores(tiny_model("gemma3"), text, completion.token_ids)
        assert completion.logprobs is not None
        assert [entry.token_id for entry in completion.logprobs] == completion.token_ids
        for entry, row in zip(completion.logprobs, table, strict=True):
            assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
            best = row.topk(max(k or 0, 1))
            assert [token for token, _ in entry.top] == best.indices.tolist()[:k]
            assert [value for _, value in entry.top] == pytest.approx(best.values.tolist()[:k], abs=1e-4)


def test_greedy_with_a_repetition_penalty_equals_generate() -> None:
    texts = random_prompts(2)
    expected = [reference_tokens("qwen3", tuple(text), N_TOKENS, repetition_penalty=1.3) for text in texts]
    answers = {tuple(text): answer for text, answer in zip(texts, expected, strict=True)}
    jobs = [
        job(text, method, repetition_penalty=1.3, stop_ids=(2,))
        for method in ("autoregressive", *METHODS)
        for text in texts
    ]
    done = complete_all(make_engine(make_target("qwen3"), answers), jobs)
    assert texts_of(done) == expected * (len(METHODS) + 1)
