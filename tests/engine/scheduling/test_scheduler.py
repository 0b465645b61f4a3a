"""Continuous batching through the real engine, bounded by a speculator that is always right and one always wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.events import LENGTH, StepEvent
from engine.loop import Engine
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.step import Step, StepResult
from speculators.testing import AlwaysWrong
from tests.support.engines import check_idle, complete_all, make_engine, make_target
from tests.support.tiny_models import random_prompts, reference_tokens

FAMILY = "qwen3"  # its texts do not repeat and do not end early
METHODS = ("autoregressive", "always-wrong", "always-right", "pld+spectra-core")

Generate = Callable[..., list[int]]
Answers = dict[tuple[int, ...], list[int]]


def job(prompt: list[int], method: str = "autoregressive", n: int = 16, priority: int = 0, **params: Any) -> Request:
    return Request(prompt, SamplingParams(max_tokens=n, **params), method, priority=priority)


def known(generate: Generate, texts: list[list[int]], n: int = 16) -> Answers:
    return {tuple(text): generate(FAMILY, tuple(text), n) for text in texts}


def watch(engine: Engine) -> list[Step]:
    """Every step the engine's target is asked for, from now on."""
    steps: list[Step] = []
    inner = engine.target.step

    def step(asked: Step) -> StepResult:
        steps.append(asked)
        return inner(asked)

    engine.target.step = step  # type: ignore[assignment,method-assign]
    return steps


def drain(engine: Engine) -> dict[int, list[int]]:
    """Run until nothing is left: sequence -> its tokens from now on."""
    texts: dict[int, list[int]] = {}
    while engine.has_work:
        for seq, event in engine.step():
            texts.setdefault(seq, []).extend(event.token_ids)
    return texts


def n_rows(step: Step) -> tuple[int, int]:
    """(rows of trees with their roots, rows of prompt)."""
    trees = sum(1 + len(work.tree) for work in step.work if work.tree is not None)
    return trees, sum(len(work.tokens) for work in step.work if work.tree is None)


@pytest.mark.parametrize("method", METHODS)
def test_requests_join_and_leave_between_steps(
    method: str,
) -> None:
    texts = random_prompts(5)
    answers = known(reference_tokens, texts, 24)
    runner = make_engine(make_target(FAMILY), answers)
    written: dict[int, list[int]] = {}
    alive_together = 0
    for text in texts:
        written[runner.submit(job(text, method, n=24))] = []
        for _ in range(2):
            for seq, event in runner.step():
                written[seq] += event.token_ids
        alive_together = max(alive_together, runner.scheduler.n_running)
    for seq, tokens in drain(runner).items():
        written[seq] += tokens
    check_idle(runner)
    assert list(written.values()) == list(answers.values())
    assert alive_together > 1


def test_a_prompt_is_read_in_chunks_beside_decoding() -> None:
    texts = random_prompts(2)
    answers = known(reference_tokens, texts)
    runner = make_engine(make_target(FAMILY), answers, SchedulerOptions(prefill_chunk=5))
    first = runner.submit(job(texts[0], "always-right"))
    while not runner.step():
        pass  # six chunks
    steps = watch(runner)
    second = runner.submit(job(texts[1], "always-right"))
    written = drain(runner)
    mixed = [n_rows(step) for step in steps if len(step.work) == 2]
    assert len(mixed) >= 3
    assert all(0 < trees <= 5 and 0 < chunk <= 5 for trees, chunk in mixed)
    assert answers[tuple(texts[0])][1:] == written[first]
    assert answers[tuple(texts[1])] == written[second]


@pytest.mark.parametrize("max_rows", [2, 7, 40])
@pytest.mark.parametrize("method", METHODS)
def test_no_step_has_more_rows_than_allowed(
    method: str,
    max_rows: int,
) -> None:
    texts = random_prompts(3)
    answers = known(reference_tokens, texts, 8)
    runner = make_engine(make_target(FAMILY), answers, SchedulerOptions(max_step_rows=max_rows, prefill_chunk=24))
    steps = watch(runner)
    done = complete_all(runner, [job(text, method, n=8) for text in texts])
    assert [completion.token_ids for completion in done] == list(answers.values())
    assert max(sum(n_rows(step)) for step in steps) <= max_rows
    assert max(n_rows(step)[1] for step in steps) <= 24


@pytest.mark.parametrize("n_micro_batches", [1, 2])
def test_when_not_all_fit_in_a_step_they_take_turns(n_micro_batches: int) -> None:
    texts = random_prompts(4)
    answers = known(reference_tokens, texts, 60)
    options = SchedulerOptions(max_step_rows=10, n_micro_batches=n_micro_batches)
    runner = make_engine(make_target(FAMILY), answers, options)
    written: dict[int, list[int]] = {runner.submit(job(text, "always-wrong", n=60)): [] for text in texts}
    while not all(written.values()):  # every prompt is read
        for seq, event in runner.step():
            written[seq] += event.token_ids
    before = {seq: len(tokens) for seq, tokens in written.items()}
    for _ in range(8):
        for seq, event in runner.step():
            written[seq] += event.token_ids
    assert all(len(written[seq]) - before[seq] == 4 for seq in written)


def test_prompts_are_read_also_when_drafts_could_fill_every_step() -> None:
    texts = random_prompts(5)
    runner = make_engine(make_target(FAMILY), known(reference_tokens, texts, 60), SchedulerOptions(max_step_rows=20))
    n_begun = 0
    for text in texts[:4]:  # 20 rows of trees
        runner.submit(job(text, "always-wrong", n=60))
        while n_begun < runner.scheduler.n_running + runner.scheduler.n_waiting:
            n_begun += sum(event.stats is None and event.drafts is None for _, event in runner.step())
    late = runner.submit(job(texts[4], n=2))  # 58 tokens
    heard = [late in {seq for seq, _ in runner.step()} for _ in range(14)]
    assert any(heard)


@pytest.mark.parametrize("max_rows", [2, 3, 7, 20])
def test_a_prompt_is_read_beside_a_request_whose_trees_would_fill_every_step(max_rows: int) -> None:
    texts = [random_prompts(1)[0], random_prompts(2)[1][:5]]
    answers = known(reference_tokens, texts, 60)
    options = SchedulerOptions(max_step_rows=max_rows)
    trees = {"filling": lambda _: AlwaysWrong(answers, depth=60)}
    runner = make_engine(make_target(FAMILY), answers, options, trees)
    filling = Request(texts[0], SamplingParams(max_tokens=60), "filling", max_nodes=max_rows - 1)
    first = runner.submit(filling)
    written: dict[int, list[int]] = {first: []}
    while not written[first]:
        for seq, event in runner.step():
            written[seq] += event.token_ids
    steps = watch(runner)
    late = runner.submit(job(texts[1], n=2))
    while late in {sequence.seq for sequence in runner.scheduler.sequences}:
        for seq, event in runner.step():
            written.setdefault(seq, []).extend(event.token_ids)
    assert len(written[first]) < 30, "it goes on beside the other"
    n_seen = len(steps)
    for seq, tokens in drain(runner).items():
        written[seq] += tokens
    assert written == {first: answers[tuple(texts[0])], late: answers[tuple(texts[1])][:2]}
    assert max(n_rows(step)[0] for step in steps[n_seen:]) == max_rows, "alone, it has all of a step again"


def test_lower_priority_numbers_go_first() -> None:
    runner = make_engine(make_target(FAMILY), None, SchedulerOptions(max_sequences=1))
    order = [
        runner.submit(job(text, n=2, priority=p)) for text, p in zip(random_prompts(4), (5, 0, 5, -1), strict=True)
    ]
    first_tokens = list(dict.fromkeys(seq for _ in range(40) for seq, _ in runner.step()))
    assert first_tokens == [order[3], order[1], order[0], order[2]]


def test_only_the_last_event_carries_reason_and_figures() -> None:
    runner = make_engine(make_target(FAMILY))
    runner.submit(job(random_prompts(1)[0], "spectra-core"))
    events: list[StepEvent] = []
    while runner.has_work:
        events += [event for _, event in runner.step()]
    assert all(event.finish_reason is None and event.stats is None for event in events[:-1])
    assert events[-1].finish_reason == LENGTH
    stats = events[-1].stats
    assert stats is not None
    assert events[0].drafts is None
    drafts = [event.drafts["spectra-core"] for event in events[1:] if event.drafts]
    assert stats.by_source == {"spectra-core": tuple(map(sum, zip(*drafts, strict=True)))}
    assert stats.step_tokens == [len(event.token_ids) for event in events[1:]]
