"""Sampled text depends on model, prompt, parameters and seed alone: not on drafts, batch or stages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from engine.events import TokenLogprob
from engine.loop import Completion
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.tiny_models import random_prompts, reference_tokens, tiny_model

QUICK = ("pld+spectra-core", "always-wrong", "always-right")
METHODS = (*QUICK, "suffix+token-recycling", "spectra-core", "token-recycling")
MARKED = [pytest.param(method, marks=[pytest.mark.matrix] * (method not in QUICK)) for method in METHODS]
N_TOKENS = 16
HOT = {"temperature": 0.9, "seed": 3}


def job(prompt: list[int], method: str = "autoregressive", **params: Any) -> Request:
    return Request(prompt, SamplingParams(max_tokens=N_TOKENS, **params), method)


def texts_of(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


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


def scored(prompt: list[int], method: str = "autoregressive", k: int | None = 3, **params: Any) -> Request:
    return Request(prompt, SamplingParams(**{"max_tokens": 8} | params, prompt_logprobs=k), method)


@torch.no_grad()
def check(family: str, prompt: list[int], found: list[TokenLogprob] | None, k: int = 3) -> None:
    """Against one forward of the whole prompt through Hugging Face's model."""
    assert found is not None
    table = tiny_model(family)(torch.tensor([prompt])).logits[0].log_softmax(-1)
    assert [entry.token_id for entry in found] == prompt[1:]
    for row, entry in zip(table, found, strict=False):
        assert entry.logprob == pytest.approx(row[entry.token_id].item(), abs=2e-4)
        assert [value for _, value in entry.top] == pytest.approx(row.topk(k).values.tolist(), abs=2e-4)
        assert [value for _, value in entry.top] == pytest.approx([row[i].item() for i, _ in entry.top], abs=2e-4)


@pytest.mark.parametrize(
    ("family", "method", "stages", "chunk"),
    [
        ("llama", "autoregressive", 1, 512),
        ("gemma3", "suffix+token-recycling", 1, 7),
        ("llama", "pld", 3, 16),
        ("gemma3", "autoregressive", 3, 16),
    ],
)
def test_every_token_of_a_prompt_has_the_models_log_probability(
    family: str, method: str, stages: int, chunk: int
) -> None:
    prompts = [*random_prompts(3), [5]]
    engine = make_engine(make_target(family, stages=stages), None, SchedulerOptions(prefill_chunk=chunk))
    plain = complete_all(engine, [scored(prompt, method, None) for prompt in prompts])
    for _ in range(2):  # the second time all prompts are in the prefix cache
        done = complete_all(engine, [scored(prompt, method) for prompt in prompts])
        for prompt, completion, other in zip(prompts, done, plain, strict=True):
            check(family, prompt, completion.prompt_logprobs)
            assert completion.token_ids == other.token_ids
            assert other.prompt_logprobs is None
            assert completion.stats.cached_tokens == 0


@pytest.mark.parametrize(("n_blocks", "chunk"), [(32, 9), (28, 2)])  # the second preempts while prompts are read
def test_a_preempted_request_reports_each_position_once(n_blocks: int, chunk: int) -> None:
    prompts = random_prompts(4)
    target = make_target("qwen3", n_blocks=n_blocks, block_size=4)
    engine = make_engine(target, None, SchedulerOptions(prefill_chunk=chunk))
    done = complete_all(engine, [scored(prompt, max_tokens=40) for prompt in prompts])
    assert sum(completion.stats.preemptions for completion in done) > 0
    for prompt, completion in zip(prompts, done, strict=True):
        check("qwen3", prompt, completion.prompt_logprobs)


def test_requests_of_one_step_may_differ_in_k_and_a_resumed_one_reports_no_prompt() -> None:
    prompts = random_prompts(3)
    engine = make_engine(make_target("llama"))
    none, five, plain = complete_all(
        engine, [scored(p, k=k, logprobs=2) for p, k in zip(prompts, (0, 5, None), strict=True)]
    )
    check("llama", prompts[0], none.prompt_logprobs, 0)
    check("llama", prompts[1], five.prompt_logprobs, 5)
    assert plain.prompt_logprobs is None
    for completion in (none, five, plain):
        assert [entry.token_id for entry in completion.logprobs or ()] == completion.token_ids
    params = scored(prompts[1]).params
    resumed = engine.complete(Request(prompts[1], params, "autoregressive", emitted=five.token_ids[:3]))
    assert resumed.prompt_logprobs is None
    assert resumed.token_ids == five.token_ids[3:]
