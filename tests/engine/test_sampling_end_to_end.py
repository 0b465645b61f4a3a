"""Sampled text depends on model, prompt, parameters and seed, and on nothing else: not on drafts, batch or stages."""

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

METHODS = (
    "pld",
    "spectra-core",
    "suffix",
    "token-recycling",
    "suffix+token-recycling",
    "suffix+token-recycling+spectra-core",
    "always-wrong",
    "always-right",
    "pld+spectra-core",
)
N_TOKENS = 16
HOT = {"temperature": 0.9, "seed": 3}
THIRDS = tuple(range(0, 97, 3))


STYLES: dict[str, dict[str, Any]] = {
    "temperature": HOT,
    "cool": {**HOT, "temperature": 0.3},
    "top-p": {**HOT, "top_p": 0.7},
    "top-k": {**HOT, "temperature": 1.5, "top_k": 5},
    "min-p": {**HOT, "temperature": 1.5, "min_p": 0.1},
    "repetition": {**HOT, "repetition_penalty": 1.4},
    "presence-frequency": {**HOT, "presence_penalty": 1.1, "frequency_penalty": 0.6},
    "bias": {**HOT, "logit_bias": {7: 4.0, 8: -100.0}},
    "min-tokens": {**HOT, "min_tokens": 8, "stop_ids": THIRDS},
    "allowed": {**HOT, "allowed_ids": tuple(range(1, 97, 5))},
    "bad-words": {**HOT, "bad_words": ((3,), (5, 7), *((i, i + j) for i in range(90) for j in range(1, 4)))},
    "greedy-masks": {"allowed_ids": tuple(range(40)), "bad_words": tuple((i, i) for i in range(40)), "min_tokens": 3},
    "stop": {**HOT, "stop_ids": THIRDS},
    "greedy-penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "logit_bias": {9: 2.0}},
    "greedy-min-tokens": {"min_tokens": 6, "stop_ids": tuple(range(0, 97, 2))},
    "all": {
        **HOT,
        "top_p": 0.9,
        "top_k": 30,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.2,
        "logit_bias": {5: 1.0},
        "min_tokens": 5,
        "stop_ids": THIRDS,
    },
}


def job(prompt: list[int], method: str = "autoregressive", **params: Any) -> Request:
    return Request(prompt, SamplingParams(max_tokens=N_TOKENS, **params), method)


def texts_of(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


@pytest.mark.parametrize(
    ("family", "style"),
    [
        *(("qwen3", style) for style in STYLES),
        *(("qwen2", style) for style in ("temperature", "greedy-penalties", "all")),
    ],
)
def test_every_method_writes_the_text_of_plain_decoding(family: str, style: str) -> None:
    texts = random_prompts(2)
    plain = texts_of(complete_all(make_engine(make_target(family)), [job(text, **STYLES[style]) for text in texts], 1))
    answers = {tuple(text): answer for text, answer in zip(texts, plain, strict=True)}
    runner = make_engine(make_target(family, stages=2), answers)
    jobs = [job(text, method, **STYLES[style]) for method in METHODS for text in texts]
    done = complete_all(runner, jobs, 8)
    assert texts_of(done) == plain * len(METHODS)
    for completion, asked in zip(done, jobs, strict=True):
        if asked.method == "always-right":
            assert completion.stats.accepted_tokens == completion.stats.drafted_tokens
        if asked.method == "always-wrong":
            assert completion.stats.accepted_tokens == 0


@pytest.mark.parametrize("sources", [("suffix",), ("token-recycling",), ("suffix", "token-recycling")])
def test_what_earlier_requests_taught_changes_no_text(sources: tuple[str, ...]) -> None:
    """State shared within a scope, and drafts that know the noise: only the number of steps may change."""
    jobs = [job(text, "warm", temperature=0.8, seed=seed) for text in random_prompts(2) for seed in (1, 2)]
    plain = [msgspec.structs.replace(one, method="autoregressive") for one in jobs]
    runner = make_engine(
        make_target("qwen3"), extra={"warm": lambda _: Successors(SuccessorConfig(shared=True, least=0.0), sources)}
    )
    cold, warm = (complete_all(runner, jobs, 2) for _ in range(2))
    assert texts_of(cold) == texts_of(warm) == texts_of(complete_all(make_engine(make_target("qwen3")), plain))
    accepted = [sum(completion.stats.accepted_tokens for completion in done) for done in (cold, warm)]
    assert accepted[1] > accepted[0]


@pytest.mark.parametrize("temperature", [9e-6, 5e-324])
def test_a_temperature_that_no_division_survives_is_greedy(temperature: float) -> None:
    """Beside requests that sample, with drafts, with both rules of verification, penalties and log-probabilities."""
    style: dict[str, Any] = {"repetition_penalty": 1.3, "logit_bias": {9: 2.0, 8: -100.0}, "top_p": 0.9, "logprobs": 3}
    prompts = random_prompts(1)
    greedy, cold = (
        [
            job(prompt, method, temperature=degree, verification=rule, seed=5, **shifted)
            for degree in (heat, 0.8)
            for prompt in prompts
            for method in ("autoregressive", "suffix+token-recycling", "spectra-core")
            for rule in ("coupled", "rejection")
            for shifted in ({}, style)
        ]
        for heat in (0.0, temperature)
    )
    done = [complete_all(make_engine(make_target("qwen3")), jobs, 8) for jobs in (greedy, cold)]
    assert texts_of(done[0]) == texts_of(done[1])
    assert [one.logprobs for one in done[0]] == [one.logprobs for one in done[1]]
    assert [one.stats.accepted_tokens for one in done[0]] == [one.stats.accepted_tokens for one in done[1]]


def test_the_least_temperature_still_samples() -> None:
    """What is below is the very parameter of greedy decoding, however it was made."""
    greedy = SamplingParams(seed=5)
    for temperature in (0.0, 9.99e-6, 1e-6, 1e-30, 2.2e-308, 5e-324):
        params = SamplingParams(temperature=temperature, seed=5)
        assert params == greedy
        assert msgspec.structs.replace(params, temperature=temperature) == greedy
        assert msgspec.msgpack.decode(
            msgspec.msgpack.encode({"temperature": temperature}), type=SamplingParams
        ).is_greedy
    least = [job(text, temperature=1e-5, seed=5) for text in random_prompts(2)]
    assert not least[0].params.is_greedy
    plain = [job(text) for text in random_prompts(2)]
    done = (texts_of(complete_all(make_engine(make_target("qwen3")), jobs, 2)) for jobs in (least, plain))
    assert next(done) == next(done), "the argmax, because no noise reaches so far"


def test_other_requests_in_the_batch_change_nothing() -> None:
    jobs = [
        job(text, method, **params)
        for text, method, params in zip(random_prompts(len(STYLES)), METHODS * 3, STYLES.values(), strict=False)
    ]
    together = complete_all(make_engine(make_target("llama")), jobs, len(jobs))
    alone = [complete_all(make_engine(make_target("llama")), [one])[0] for one in jobs]
    assert texts_of(together) == texts_of(alone)


def test_seed_and_choice_decide() -> None:
    keys = [{"seed": 1}, {"seed": 1}, {"seed": 2}, {"seed": 1, "choice": 1}, {"seed": 2**64 - 1}]
    done = complete_all(
        make_engine(make_target("qwen3")), [job(random_prompts(1)[0], "pld", temperature=1.0, **key) for key in keys]
    )
    first, again, *others = texts_of(done)
    assert first == again
    assert len({tuple(text) for text in [first, *others]}) == 4


def test_every_limit_on_the_tokens_is_kept() -> None:
    text = random_prompts(1)[0]
    jobs = [job(text, "spectra-core", **STYLES[style]) for style in ("bias", "min-tokens", "stop", "top-k")]
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


@pytest.mark.parametrize("method", METHODS)
def test_rejection_verification_takes_trees_and_repeats_itself(method: str) -> None:
    texts = random_prompts(3)
    answers = {tuple(text): reference_tokens("gemma3", tuple(text), N_TOKENS) for text in texts}
    jobs = [job(text, method, **HOT, verification="rejection", top_p=0.9) for text in texts]
    twice = [
        texts_of(complete_all(make_engine(make_target("gemma3", stages=stages), answers), jobs, 3)) for stages in (1, 2)
    ]
    assert twice[0] == twice[1]
    assert all(len(text) == N_TOKENS for text in twice[0])
    greedy = complete_all(
        make_engine(make_target("gemma3"), answers), [job(text, method, verification="rejection") for text in texts]
    )
    assert texts_of(greedy) == list(answers.values())


def scores(model: Any, prompt: list[int], output: list[int]) -> torch.Tensor:
    """Log-probabilities behind the prompt and behind every output token but the last, ``[n_output, vocab]``."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.float(), dim=-1)


@pytest.mark.parametrize("method", ["autoregressive", "always-right", "always-wrong", "pld+spectra-core"])
@pytest.mark.parametrize("params", [{}, HOT, {**HOT, "repetition_penalty": 1.3, "top_k": 4}])
def test_logprobs_are_those_of_a_direct_forward(
    method: str,
    params: dict[str, Any],
) -> None:
    texts = random_prompts(2)
    plain = texts_of(complete_all(make_engine(make_target("gemma3")), [job(text, **params) for text in texts]))
    answers = {tuple(text): answer for text, answer in zip(texts, plain, strict=True)}
    runner = make_engine(make_target("gemma3", stages=2), answers)
    done = complete_all(
        runner, [job(text, method, **params, logprobs=k) for text, k in zip(texts, (3, 0), strict=True)]
    )
    assert texts_of(done) == plain
    for text, completion, k in zip(texts, done, (3, 0), strict=True):
        table = scores(tiny_model("gemma3"), text, completion.token_ids)
        assert completion.logprobs is not None
        assert [entry.token_id for entry in completion.logprobs] == completion.token_ids
        for entry, row in zip(completion.logprobs, table, strict=True):
            assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
            best = row.topk(max(k, 1))
            assert [token for token, _ in entry.top] == best.indices.tolist()[:k]
            assert [value for _, value in entry.top] == pytest.approx(best.values.tolist()[:k], abs=1e-4)


def test_requests_that_ask_for_no_logprobs_get_none() -> None:
    jobs = [job(random_prompts(1)[0], "pld", logprobs=k) for k in (None, 1)]
    without, with_one = complete_all(make_engine(make_target("llama")), jobs)
    assert without.logprobs is None
    assert with_one.logprobs is not None


@pytest.mark.parametrize("method", ["autoregressive", *METHODS])
def test_greedy_with_a_repetition_penalty_writes_what_generate_writes(method: str) -> None:
    texts = random_prompts(2)
    wanted = [reference_tokens("qwen3", tuple(text), N_TOKENS, repetition_penalty=1.3) for text in texts]
    answers = {tuple(text): answer for text, answer in zip(texts, wanted, strict=True)}
    jobs = [job(text, method, repetition_penalty=1.3, stop_ids=(2,)) for text in texts]
    assert texts_of(complete_all(make_engine(make_target("qwen3"), answers), jobs)) == wanted
