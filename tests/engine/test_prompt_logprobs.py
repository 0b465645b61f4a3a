"""Log-probabilities of prompts are the model's, whatever chunks, caches, stages, methods and preemptions there are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.events import TokenLogprob
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.tiny_models import random_prompts, tiny_model

K = 3


def job(prompt: list[int], method: str = "autoregressive", told: int | None = K, **params: Any) -> Request:
    return Request(prompt, SamplingParams(**{"max_tokens": 8} | params, prompt_logprobs=told), method)


@torch.no_grad()
def check(family: str, prompt: list[int], told: list[TokenLogprob] | None, k: int = K) -> None:
    """Against one forward of the whole prompt through Hugging Face's model."""
    assert told is not None
    table = tiny_model(family)(torch.tensor([prompt])).logits[0].log_softmax(-1)
    assert [entry.token_id for entry in told] == prompt[1:]
    for row, entry in zip(table, told, strict=False):
        assert entry.logprob == pytest.approx(row[entry.token_id].item(), abs=2e-4)
        assert [value for _, value in entry.top] == pytest.approx(row.topk(k).values.tolist(), abs=2e-4)
        assert [value for _, value in entry.top] == pytest.approx([row[i].item() for i, _ in entry.top], abs=2e-4)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("method", ["autoregressive", "suffix+token-recycling", "pld"])
@pytest.mark.parametrize(("stages", "chunk"), [(1, 512), (1, 7), (3, 16)])
def test_every_token_of_a_prompt_has_the_models_log_probability(
    family: str, method: str, stages: int, chunk: int
) -> None:
    prompts = [*random_prompts(3), [5]]
    engine = make_engine(make_target(family, stages=stages), None, SchedulerOptions(prefill_chunk=chunk))
    plain = complete_all(engine, [job(prompt, method, None) for prompt in prompts])
    for _ in range(2):  # the second time all prompts are in the cache
        done = complete_all(engine, [job(prompt, method) for prompt in prompts])
        for prompt, completion, other in zip(prompts, done, plain, strict=True):
            check(family, prompt, completion.prompt_logprobs)
            assert completion.token_ids == other.token_ids
            assert other.prompt_logprobs is None
            assert completion.stats.cached_tokens == 0


@pytest.mark.parametrize(("n_blocks", "chunk"), [(32, 9), (28, 2)])  # the second preempts while prompts are read
def test_a_preempted_request_tells_them_once(n_blocks: int, chunk: int) -> None:
    prompts = random_prompts(4)
    target = make_target("qwen3", n_blocks=n_blocks, block_size=4)
    engine = make_engine(target, None, SchedulerOptions(prefill_chunk=chunk))
    done = complete_all(engine, [job(prompt, max_tokens=40) for prompt in prompts])
    assert sum(completion.stats.preemptions for completion in done) > 0
    for prompt, completion in zip(prompts, done, strict=True):
        check("qwen3", prompt, completion.prompt_logprobs)


def test_requests_of_one_step_want_different_numbers_and_drawn_tokens_are_told_too() -> None:
    prompts = random_prompts(3)
    engine = make_engine(make_target("llama"))
    jobs = [job(prompt, told=k, logprobs=2) for prompt, k in zip(prompts, (0, 5, None), strict=True)]
    none, five, plain = complete_all(engine, jobs)
    check("llama", prompts[0], none.prompt_logprobs, 0)
    check("llama", prompts[1], five.prompt_logprobs, 5)
    assert plain.prompt_logprobs is None
    for completion in (none, five, plain):
        assert [entry.token_id for entry in completion.logprobs or ()] == completion.token_ids


def test_a_resumed_request_does_not_tell_them_again() -> None:
    engine, (prompt,) = make_engine(make_target("llama")), random_prompts(1)
    whole = engine.complete(job(prompt))
    resumed = engine.complete(Request(prompt, job(prompt).params, "autoregressive", emitted=whole.token_ids[:3]))
    assert resumed.prompt_logprobs is None
    assert resumed.token_ids == whole.token_ids[3:]
