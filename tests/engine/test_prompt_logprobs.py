"""Log-probabilities of a prompt are the model's, whatever chunks, caches, stages, methods and preemptions there are."""

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


def job(prompt: list[int], method: str = "autoregressive", k: int | None = 3, **params: Any) -> Request:
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
    plain = complete_all(engine, [job(prompt, method, None) for prompt in prompts])
    for _ in range(2):  # the second time all prompts are in the prefix cache
        done = complete_all(engine, [job(prompt, method) for prompt in prompts])
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
    done = complete_all(engine, [job(prompt, max_tokens=40) for prompt in prompts])
    assert sum(completion.stats.preemptions for completion in done) > 0
    for prompt, completion in zip(prompts, done, strict=True):
        check("qwen3", prompt, completion.prompt_logprobs)


def test_requests_of_one_step_may_differ_in_k_and_a_resumed_one_reports_no_prompt() -> None:
    prompts = random_prompts(3)
    engine = make_engine(make_target("llama"))
    none, five, plain = complete_all(
        engine, [job(p, k=k, logprobs=2) for p, k in zip(prompts, (0, 5, None), strict=True)]
    )
    check("llama", prompts[0], none.prompt_logprobs, 0)
    check("llama", prompts[1], five.prompt_logprobs, 5)
    assert plain.prompt_logprobs is None
    for completion in (none, five, plain):
        assert [entry.token_id for entry in completion.logprobs or ()] == completion.token_ids
    params = job(prompts[1]).params
    resumed = engine.complete(Request(prompts[1], params, "autoregressive", emitted=five.token_ids[:3]))
    assert resumed.prompt_logprobs is None
    assert resumed.token_ids == five.token_ids[3:]
