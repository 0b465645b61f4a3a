"""Continuous batching and memory through the real engine, with speculators that are always right and always wrong."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from engine.errors import OverloadedError, PromptTooLongError, RequestError
from engine.events import LENGTH, StepEvent
from engine.loop import Engine
from engine.protocol import Branch, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.step import Step
from engine.target_model.info import MAX_TREE
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from engine.tree import EMPTY_TREE
from speculators.testing import AlwaysRight, AlwaysWrong
from tests.engine.scheduling.step_driver import watched
from tests.support.engines import check_idle, complete_all, make_engine, make_target
from tests.support.tiny_models import random_prompts, reference_tokens, saved_model

FAMILY = "qwen3"  # its texts do not repeat and do not end early
METHODS = ("autoregressive", "always-wrong", "always-right", "pld+spectra-core")
STYLES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {
        "temperature": 0.8,
        "seed": 11,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "min_tokens": 36,
        "stop_ids": tuple(range(0, 97, 3)),
    },
}
Answers = dict[tuple[int, ...], list[int]]


def job(prompt: list[int], method: str = "autoregressive", n: int = 16, priority: int = 0, **params: Any) -> Request:
    return Request(prompt, SamplingParams(max_tokens=n, **params), method, priority=priority)


def known(texts: list[list[int]], n: int = 16) -> Answers:
    return {tuple(text): reference_tokens(FAMILY, tuple(text), n) for text in texts}


def advance(engine: Engine, written: dict[int, list[int]]) -> None:
    """One step."""
    for seq, event in engine.step():
        written.setdefault(seq, []).extend(event.token_ids)


def n_rows(step: Step) -> tuple[int, int]:
    """Rows of trees with their roots, and rows of prompt."""
    trees = sum(1 + len(work.tree) for work in step.work if work.tree is not None)
    return trees, sum(len(work.tokens) for work in step.work if work.tree is None)


@pytest.mark.parametrize(("method", "max_rows"), [*zip(METHODS, (2, 7, 40, 7), strict=True), ("always-right", 2)])
def test_no_step_has_more_rows_than_allowed(method: str, max_rows: int) -> None:
    texts = random_prompts(3)
    answers = known(texts, 8)
    runner = make_engine(make_target(FAMILY), answers, SchedulerOptions(max_step_rows=max_rows, prefill_chunk=24))
    with watched(runner) as steps:
        done = complete_all(runner, [job(text, method, n=8) for text in texts])
    assert [completion.token_ids for completion in done] == list(answers.values())
    assert max(sum(n_rows(step)) for step in steps) <= max_rows
    assert max(n_rows(step)[1] for step in steps) <= 24


@pytest.mark.parametrize("max_rows", [2, 7, 20])
def test_a_prompt_is_read_while_another_request_could_fill_every_step(max_rows: int) -> None:
    texts = [random_prompts(1)[0], random_prompts(2)[1][:5]]
    answers = known(texts, 60)
    options = SchedulerOptions(max_step_rows=max_rows)
    trees = {"filling": lambda _: AlwaysWrong(answers, depth=60)}
    runner = make_engine(make_target(FAMILY), answers, options, trees)
    first = runner.submit(Request(texts[0], SamplingParams(max_tokens=60), "filling", max_nodes=max_rows - 1))
    written: dict[int, list[int]] = {first: []}
    while not written[first]:
        advance(runner, written)
    late = runner.submit(job(texts[1], n=2))
    with watched(runner) as steps:
        while late in {sequence.seq for sequence in runner.scheduler.sequences}:
            advance(runner, written)
    assert any(all(n_rows(step)) for step in steps) or max_rows == 2, "trees and a chunk share a step"
    assert len(written[first]) < 30, "it continues while the other is read"
    with watched(runner) as steps:
        while runner.has_work:
            advance(runner, written)
    assert written == {first: answers[tuple(texts[0])], late: answers[tuple(texts[1])][:2]}
    assert max(n_rows(step)[0] for step in steps) == max_rows, "alone, it has all of a step again"


def test_only_the_last_event_has_a_reason_and_stats() -> None:
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


@pytest.mark.parametrize(
    ("n_blocks", "style", "stages"), [(32, "greedy", 1), (32, "sampling", 3), (70, "greedy", 3), (70, "sampling", 1)]
)
def test_preemptions_and_moves_change_no_output(n_blocks: int, style: str, stages: int) -> None:
    texts, params = random_prompts(4 if n_blocks == 32 else 6), STYLES[style]
    roomy = make_engine(make_target(FAMILY))
    answers = [done.token_ids for done in complete_all(roomy, [job(text, n=40, **params) for text in texts])]
    assert roomy.scheduler.blocks.n_moved == 0
    tight = make_engine(
        make_target(FAMILY, stages=stages, n_blocks=n_blocks, block_size=4),
        dict(zip(map(tuple, texts), answers, strict=True)),
        SchedulerOptions(prefill_chunk=9),
    )
    done = complete_all(tight, [job(text, METHODS[i % 4], n=40, **params) for i, text in enumerate(texts)])
    assert [completion.token_ids for completion in done] == answers
    assert sum(one.stats.preemptions for one in done) + tight.scheduler.blocks.n_moved > 0
    assert n_blocks == 70 or sum(one.stats.preemptions for one in done) > 0


def test_a_move_that_lacks_memory_can_be_retried() -> None:
    runner = make_engine(make_target(FAMILY, n_blocks=70, block_size=4))
    expected = {runner.submit(job(text, n=40)): reference_tokens(FAMILY, tuple(text), 40) for text in random_prompts(6)}
    emitted: dict[int, list[int]] = {seq: [] for seq in expected}
    (stage,) = runner.target._stages  # type: ignore[attr-defined]
    scheduler, n_failures = runner.scheduler, 0
    while scheduler.has_work:
        step = scheduler.next_step(0)
        assert step is not None
        if any(work.moved for work in step.work):
            n_failures += 1
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(stage._arena, "move_runs", Mock(side_effect=MemoryError))
                with pytest.raises(MemoryError):
                    stage.admit(step)
        sequences = [scheduler.find(work.seq) for work in step.work]
        for commit in scheduler.commit(step, runner.target.step(step), sequences):
            emitted[commit.sequence.seq] += commit.answer.tokens if commit.answer is not None else []
            scheduler.set_tree(commit.sequence, EMPTY_TREE)
    assert emitted == expected
    assert n_failures > 0


def test_the_request_of_lowest_priority_is_preempted() -> None:
    runner = make_engine(make_target(FAMILY, n_blocks=22, block_size=4))
    preempted: dict[int, int] = {}
    for priority in (1, 0):
        preempted[runner.submit(job(random_prompts(1)[0], n=24, priority=priority))] = -1
    while runner.has_work:
        for seq, event in runner.step():
            if event.stats is not None:
                preempted[seq] = event.stats.preemptions
    assert preempted == {0: 1, 1: 0}


def test_a_full_queue_reports_when_to_retry() -> None:
    runner = make_engine(make_target(FAMILY), None, SchedulerOptions(max_waiting=2))
    for text in random_prompts(2):
        runner.submit(job(text, "pld"))
    with pytest.raises(OverloadedError) as caught:
        runner.submit(job(random_prompts(1)[0], "pld"))
    assert caught.value.retry_after > 0
    assert runner.pool.n_live == 2
    while runner.has_work:
        runner.step()
    check_idle(runner)


@pytest.mark.parametrize(
    ("prompt", "n", "kind", "param"),
    [
        ([5] * 490, 11, PromptTooLongError, "max_tokens"),
        ([5] * 500, 1, PromptTooLongError, "prompt"),
        ([], 4, RequestError, "prompt"),
        ([5, 97], 4, RequestError, "prompt"),
        ([5, -1], 4, RequestError, "prompt"),
        ([5], 0, RequestError, "max_tokens"),
    ],
)
def test_a_request_that_can_never_be_served_is_refused_by_name(
    prompt: list[int], n: int, kind: type[RequestError], param: str
) -> None:
    runner = make_engine(make_target(FAMILY))
    with pytest.raises(kind) as caught:
        runner.submit(job(prompt, "pld", n=n))
    assert caught.value.param == param
    check_idle(runner)


def test_the_longest_allowed_text_fits_the_smallest_cache() -> None:
    text = (random_prompts(1)[0] * 20)[:480]
    runner = make_engine(make_target(FAMILY, n_blocks=126, block_size=4), None, SchedulerOptions(prefill_chunk=100))
    jobs = [job(text, method, n=20) for method in ("autoregressive", "spectra-core")]
    done = complete_all(runner, jobs)
    assert done[0].token_ids == done[1].token_ids
    assert {completion.finish_reason for completion in done} == {LENGTH}


class EndlessDrafter(AlwaysRight):
    """Drafts one chain as long as the budget."""

    name = "endless"

    def propose(self, request: RequestView, budget: int) -> list[Branch]:
        return [Branch([5] * budget, self.name)]


def test_a_tree_never_exceeds_the_largest_of_a_stage() -> None:
    path = saved_model(FAMILY)
    made = LocalTarget.load(TargetOptions(str(path), kv_bytes=8 << 20), path)
    options = SchedulerOptions(max_step_rows=4096)
    runner = make_engine(made, None, options, {"endless": lambda _: EndlessDrafter({})})
    text = [7] * (made.info.max_model_len - 3)
    (done,) = complete_all(runner, [Request(text, SamplingParams(max_tokens=3), "endless", max_nodes=5000)])
    assert done.stats.max_nodes_used == MAX_TREE
