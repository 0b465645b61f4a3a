"""Everything that requests ask for is the same with two stages of two tensor-parallel ranks, and leaves nothing."""

from __future__ import annotations

from typing import Any

import pytest

from engine.events import TokenLogprob
from engine.loop import Completion, Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from tests.support.engines import check_idle, complete_all, make_engine
from tests.support.grammars import PERSON, of_regex, of_schema, tiny_grammars
from tests.support.rank_threads import threaded_target
from tests.support.tiny_models import random_prompts, saved_checkpoint, tiny_tokenizer

EOS = 2
HOT: dict[str, Any] = {"temperature": 0.9, "seed": 3}
STYLES: list[dict[str, Any]] = [
    {"logprobs": 3, "prompt_logprobs": 2},
    {**HOT, "logprobs": 2, "top_p": 0.8, "top_k": 9, "min_p": 0.01},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "logit_bias": {9: 2.0}, "logprobs": 1},
    {**HOT, "presence_penalty": 1.1, "min_tokens": 6, "stop_ids": tuple(range(0, 97, 3))},
    {**HOT, "verification": "rejection", "bad_words": ((3,), (5, 7)), "allowed_ids": tuple(range(90))},
]
METHODS = ("autoregressive", "always-right", "suffix+token-recycling", "pld", "spectra-core")


def engine_of(ranks: int, stages: int, *, answers: Any = None, chunk: int = 17, **target: Any) -> Engine:
    made = threaded_target(target.pop("path", "qwen3"), ranks, stages, **target)
    return make_engine(made, answers, SchedulerOptions(prefill_chunk=chunk))


def same(found: list[TokenLogprob] | None, expected: list[TokenLogprob] | None) -> bool:
    """Whether ids are the same, and log-probabilities within 1e-4."""
    if found is None or expected is None:
        return found is expected
    flat = [
        [(token, logprob) for one in entries for token, logprob in [(one.token_id, one.logprob), *one.top]]
        for entries in (found, expected)
    ]
    ids, logprobs = ([[pair[i] for pair in pairs] for pairs in flat] for i in (0, 1))
    return ids[0] == ids[1] and bool(logprobs[0] == pytest.approx(logprobs[1], abs=1e-4))


def check(done: list[Completion], expected: list[Completion]) -> None:
    for one, other in zip(done, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.finish_reason == other.finish_reason
        assert same(one.logprobs, other.logprobs)
        assert same(one.prompt_logprobs, other.prompt_logprobs)


def test_texts_and_log_probabilities_in_every_style_are_those_of_one_rank() -> None:
    styled = list(zip(random_prompts(len(STYLES)), STYLES, strict=True))
    jobs = [Request(text, SamplingParams(max_tokens=14, **style), METHODS[i]) for i, (text, style) in enumerate(styled)]
    answers = {tuple(jobs[1].prompt): complete_all(engine_of(1, 1), [jobs[1]])[0].token_ids}
    alone, done = (complete_all(engine_of(*shape, answers=answers), jobs) for shape in ((1, 1), (2, 2)))
    assert all(one.logprobs for one in alone[:3])
    assert alone[0].prompt_logprobs is not None
    assert alone[1].stats.accepted_tokens > 5
    check(done, alone)


def test_texts_under_grammars_are_those_of_one_rank() -> None:
    grammars = [of_schema(PERSON, whitespace=False), of_regex("(fox|dog)(, (fox|dog)){2,5}")]
    prompt = tiny_tokenizer().encode("Tell:")
    jobs = [
        Request(prompt, SamplingParams(max_tokens=24, stop_ids=(EOS,), grammar=one, logprobs=1, **style), method)
        for one, style, method in zip(grammars, (HOT, {}), ("pld", "suffix"), strict=True)
    ]
    alone, done = (
        complete_all(engine_of(*shape, path=saved_checkpoint(), grammars=tiny_grammars()), jobs)
        for shape in ((1, 1), (2, 2))
    )
    check(done, alone)


def test_cached_prefixes_moves_and_preemptions_change_no_text() -> None:
    texts = random_prompts(6)
    jobs = [
        Request(text, SamplingParams(max_tokens=20, **(HOT if i % 2 else {})), METHODS[2 + i % 3])
        for i, text in enumerate(texts)
    ]
    first = complete_all(engine_of(1, 1), jobs)
    longer = [
        Request([*one.prompt, *done.token_ids, *texts[0]], SamplingParams(max_tokens=6))
        for one, done in zip(jobs[:2], first, strict=False)
    ]
    engine = engine_of(2, 2, n_blocks=60, block_size=4, chunk=9)
    check(complete_all(engine, jobs[:2]), first[:2])
    found = complete_all(engine, longer, 1)
    check(found, complete_all(engine_of(1, 1), longer))
    assert sum(one.stats.cached_tokens for one in found) > 20
    check(complete_all(engine, jobs), first)
    assert engine.scheduler.blocks.n_moved > 0


def test_a_cancelled_request_leaves_nothing_on_any_rank() -> None:
    texts = random_prompts(4)
    jobs = [Request(text, SamplingParams(max_tokens=20), METHODS[i]) for i, text in enumerate(texts)]
    alone = complete_all(engine_of(1, 1), jobs)
    engine = engine_of(2, 2)
    numbers = [engine.submit(one) for one in jobs]
    texts_of: dict[int, list[int]] = {seq: [] for seq in numbers}
    n_steps = 0
    while engine.has_work:
        for seq, event in engine.step():
            texts_of[seq] += event.token_ids
        n_steps += 1
        if n_steps == 6:  # in the middle of its text
            assert 0 < len(texts_of[numbers[1]]) < 20
            engine.cancel(numbers[1])
    check_idle(engine)
    for seq, one in zip(numbers, alone, strict=True):
        assert texts_of[seq] == one.token_ids[: len(texts_of[seq])]
        assert (len(texts_of[seq]) == len(one.token_ids)) == (seq != numbers[1])
