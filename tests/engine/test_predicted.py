"""A prediction changes how many steps an answer takes, never the answer: greedy and seeded, right or useless."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

from engine.loop import Completion
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from tests.support.engines import complete_all, make_engine, make_target
from tests.support.tiny_models import random_prompts

EOS = 2
N_TOKENS = 60
JOINED = "prediction+suffix+token-recycling"
METHODS = ("prediction", "prediction+suffix", JOINED, "auto", "auto-costs")
STYLES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "seed": 11},
    "penalties": {"temperature": 0.7, "seed": 5, "repetition_penalty": 1.3, "min_tokens": 9},
}


def asked(prompt: list[int], method: str, style: str, prediction: list[int]) -> Request:
    params = SamplingParams(max_tokens=N_TOKENS, stop_ids=(EOS,), **STYLES[style])
    return Request(prompt, params, method, prediction=prediction)


@cache
def plain(style: str) -> list[list[int]]:
    """What is written without speculation."""
    jobs = [asked(text, "autoregressive", style, []) for text in random_prompts(4)]
    return [completion.token_ids for completion in complete_all(make_engine(make_target("qwen2")), jobs, 4)]


def edited(text: list[int], seed: int) -> list[int]:
    """Every fifth token or so replaced, left out or preceded by another."""
    rng, changed = random.Random(seed), list(text)
    for place in sorted(rng.sample(range(len(text)), len(text) // 5), reverse=True):
        kind = rng.randrange(3)
        changed[place : place + (kind > 0)] = [rng.randrange(3, 90)] if kind < 2 else []
    return changed


def predictions(style: str) -> dict[str, list[list[int]]]:
    texts = plain(style)
    return {
        "right": texts,
        "edited": [edited(text, i) for i, text in enumerate(texts)],
        "cut": [text[: len(text) // 2] for text in texts],
        "of another": [*texts[1:], texts[0]],
        "useless": [[random.Random(i).randrange(3, 90) for _ in range(200)] for i in range(len(texts))],
        "impossible": [[10**6, *text, -5] for text in texts],
    }


def run(method: str, style: str, predicted: list[list[int]], stages: int, chunk: int) -> list[Completion]:
    engine = make_engine(make_target("qwen2", stages=stages), None, SchedulerOptions(prefill_chunk=chunk))
    jobs = [asked(text, method, style, one) for text, one in zip(random_prompts(4), predicted, strict=True)]
    return complete_all(engine, jobs, 3)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("method", METHODS)
def test_texts_are_those_of_no_speculation_whatever_is_predicted(method: str, style: str) -> None:
    for i, (kind, predicted) in enumerate(predictions(style).items()):
        stages, chunk = ((1, 512), (2, 17))[(i + METHODS.index(method)) % 2]
        done = run(method, style, predicted, stages, chunk)
        assert [completion.token_ids for completion in done] == plain(style), (kind, stages)


@pytest.mark.parametrize("style", ["greedy", "seeded"])
@pytest.mark.parametrize("method", ["prediction", JOINED, "auto"])
def test_right_predictions_are_accepted_and_counted(method: str, style: str) -> None:
    done = run(method, style, plain(style), 1, 512)
    assert max(len(completion.token_ids) for completion in done) > 10
    for completion in done:
        if len(completion.token_ids) > 3:
            counts = completion.stats.by_source["prediction"]
            assert completion.stats.target_forwards <= len(completion.token_ids) / 4
            assert counts.proposed_accepted >= 0.8 * (len(completion.token_ids) - 2)


def test_a_useless_prediction_takes_as_many_forwards_as_none() -> None:
    useless = predictions("seeded")["useless"]
    done = run("prediction", "seeded", useless, 1, 512)
    drafted = sum(completion.stats.drafted_tokens for completion in done)
    written = sum(len(completion.token_ids) for completion in done)
    assert drafted < written


def test_a_prediction_helps_the_request_that_brings_it_and_no_other() -> None:
    prompts, texts = random_prompts(4), plain("greedy")
    jobs = [
        asked(prompt, "auto", "greedy", text if i % 2 else [])
        for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
    ]
    done = complete_all(make_engine(make_target("qwen2")), jobs, 4)
    assert [completion.token_ids for completion in done] == texts
    assert ["prediction" in completion.stats.by_source for completion in done] == [False, True, False, True]
