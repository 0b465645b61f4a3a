"""Memory and admission: preempted, interrupted or refused, no text changes and nothing is left behind."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import OverloadedError, PromptTooLongError, RequestError
from engine.events import LENGTH
from engine.protocol import Branch, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target.info import MAX_TREE
from engine.target.local import LocalTarget
from engine.target.options import TargetOptions
from engine.tree import EMPTY_TREE
from speculators.testing import AlwaysRight
from tests.support.engines import check_idle, complete_all, make_engine, make_target
from tests.support.tiny_models import random_prompts, reference_tokens, saved_model

FAMILY = "qwen3"
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


def job(prompt: list[int], method: str = "autoregressive", n: int = 16, priority: int = 0, **params: Any) -> Request:
    return Request(prompt, SamplingParams(max_tokens=n, **params), method, priority=priority)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("style", STYLES)
def test_preemption_changes_no_text(method: str, style: str) -> None:
    texts, params = random_prompts(4), STYLES[style]
    roomy = complete_all(make_engine(make_target(FAMILY)), [job(text, n=40, **params) for text in texts])
    answers = {tuple(text): done.token_ids for text, done in zip(texts, roomy, strict=True)}
    tight = make_engine(make_target(FAMILY, n_blocks=32, block_size=4), answers, SchedulerOptions(prefill_chunk=9))
    done = complete_all(tight, [job(text, method, n=40, **params) for text in texts])
    assert [completion.token_ids for completion in done] == list(answers.values())
    assert sum(completion.stats.preemptions for completion in done) > 0


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("style", STYLES)
def test_moves_change_no_text(style: str, stages: int) -> None:
    texts, params = random_prompts(6), STYLES[style]
    roomy = make_engine(make_target(FAMILY))
    answers = [done.token_ids for done in complete_all(roomy, [job(text, n=40, **params) for text in texts])]
    assert roomy.scheduler.blocks.n_moved == 0
    tight = make_engine(
        make_target(FAMILY, stages=stages, n_blocks=70, block_size=4),
        dict(zip(map(tuple, texts), answers, strict=True)),
    )
    done = complete_all(tight, [job(text, METHODS[i % 4], n=40, **params) for i, text in enumerate(texts)])
    assert [completion.token_ids for completion in done] == answers
    assert tight.scheduler.blocks.n_moved > 0


def test_a_move_that_lacks_memory_can_be_tried_again() -> None:
    runner = make_engine(make_target(FAMILY, n_blocks=70, block_size=4))
    wanted = {runner.submit(job(text, n=40)): reference_tokens(FAMILY, tuple(text), 40) for text in random_prompts(6)}
    emitted: dict[int, list[int]] = {seq: [] for seq in wanted}
    (stage,) = runner.target._stages  # type: ignore[attr-defined]
    scheduler, n_failures = runner.scheduler, 0
    while scheduler.has_work:
        step = scheduler.next_step(0)
        assert step is not None
        if any(work.moved for work in step.work):
            n_failures += 1
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(stage._arena, "move_runs", _lacks_memory)
                with pytest.raises(MemoryError):
                    stage.admit(step)
        sequences = [scheduler.find(work.seq) for work in step.work]
        for commit in scheduler.commit(step, runner.target.step(step), sequences):
            emitted[commit.sequence.seq] += commit.event.token_ids if commit.event is not None else []
            scheduler.set_tree(commit.sequence, EMPTY_TREE)
    assert emitted == wanted
    assert n_failures > 0


def _lacks_memory(_runs: object) -> None:
    raise MemoryError


@pytest.mark.parametrize("n_micro_batches", [1, 2, 4])
def test_prompts_that_together_exceed_the_cache_wait_for_each_other(
    n_micro_batches: int,
) -> None:
    texts = random_prompts(4, first=3)
    wanted = [reference_tokens(FAMILY, tuple(text), 16) for text in texts]
    options = SchedulerOptions(prefill_chunk=8, n_micro_batches=n_micro_batches)
    runner = make_engine(make_target(FAMILY, n_blocks=24, block_size=4), None, options)
    done = complete_all(runner, [job(text) for text in texts])
    assert [completion.token_ids for completion in done] == wanted


def test_the_least_important_gives_up_its_memory() -> None:
    runner = make_engine(make_target(FAMILY, n_blocks=22, block_size=4))
    preempted: dict[int, int] = {}
    for priority in (1, 0):
        preempted[runner.submit(job(random_prompts(1)[0], n=24, priority=priority))] = -1
    while runner.has_work:
        for seq, event in runner.step():
            if event.stats is not None:
                preempted[seq] = event.stats.preemptions
    assert preempted == {0: 1, 1: 0}


def test_a_full_queue_says_when_to_come_back() -> None:
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
def test_what_can_never_be_served_is_refused_by_name(
    prompt: list[int],
    n: int,
    kind: type[RequestError],
    param: str,
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


@pytest.mark.parametrize("style", STYLES)
def test_a_lost_target_changes_no_text_whenever_it_happens(style: str) -> None:
    texts, params = random_prompts(4), STYLES[style]
    plain = [
        done.token_ids
        for done in complete_all(make_engine(make_target(FAMILY)), [job(text, **params) for text in texts])
    ]
    answers = {tuple(text): answer for text, answer in zip(texts, plain, strict=True)}
    for n_steps in range(0, 16, 3):
        runner = make_engine(make_target(FAMILY), answers, SchedulerOptions(prefill_chunk=21))
        written: dict[int, list[int]] = {}
        for text, method in zip(texts, METHODS, strict=True):
            written[runner.submit(job(text, method, **params))] = []
        for moment in range(60):
            if moment == n_steps:
                runner.scheduler.lose_target()
                runner.target = make_target(FAMILY, stages=2)
            for seq, event in runner.step():
                written[seq] += event.token_ids
        assert list(written.values()) == plain
        check_idle(runner)


class Endless(AlwaysRight):
    """Drafts one chain as long as it may be."""

    name = "endless"

    def propose(self, request: RequestView, budget: int) -> list[Branch]:
        return [Branch([5] * budget, self.name)]


def test_a_tree_never_outgrows_what_a_stage_is_made_for() -> None:
    path = saved_model(FAMILY)
    made = LocalTarget.load(TargetOptions(str(path), kv_bytes=8 << 20), path)
    options = SchedulerOptions(max_step_rows=4096)
    runner = make_engine(made, None, options, {"endless": lambda _: Endless({})})
    text = [7] * (made.info.max_model_len - 3)
    (done,) = complete_all(runner, [Request(text, SamplingParams(max_tokens=3), "endless", max_nodes=5000)])
    assert done.stats.max_nodes_used == MAX_TREE
