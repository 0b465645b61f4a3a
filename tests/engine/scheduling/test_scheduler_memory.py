"""Memory and admission: preempted, interrupted or refused, no text changes and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import OverloadedError, PromptTooLongError, RequestError
from engine.events import LENGTH
from engine.loop import Completion, Engine
from engine.protocol import Branch, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.target.info import MAX_TREE
from engine.target.local import LocalTarget
from engine.target.options import TargetOptions
from speculators.testing import AlwaysRight

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

MakeTarget = Callable[..., LocalTarget]
MakeEngine = Callable[..., Engine]
Complete = Callable[..., list[Completion]]
Prompts = Callable[..., list[list[int]]]
Generate = Callable[..., list[int]]
Idle = Callable[[Engine], None]


def job(prompt: list[int], method: str = "autoregressive", n: int = 16, priority: int = 0, **params: Any) -> Request:
    return Request(prompt, SamplingParams(max_tokens=n, **params), method, priority=priority)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("style", STYLES)
def test_preemption_changes_no_text(
    method: str, style: str, target: MakeTarget, engine: MakeEngine, complete: Complete, prompts: Prompts
) -> None:
    texts, params = prompts(4), STYLES[style]
    roomy = complete(engine(target(FAMILY)), [job(text, n=40, **params) for text in texts])
    answers = {tuple(text): done.token_ids for text, done in zip(texts, roomy, strict=True)}
    tight = engine(target(FAMILY, n_blocks=32, block_size=4), answers, SchedulerOptions(prefill_chunk=9))
    done = complete(tight, [job(text, method, n=40, **params) for text in texts])
    assert [completion.token_ids for completion in done] == list(answers.values())
    assert sum(completion.stats.preemptions for completion in done) > 0


@pytest.mark.parametrize("n_micro_batches", [1, 2, 4])
def test_prompts_that_together_exceed_the_cache_wait_for_each_other(
    n_micro_batches: int,
    target: MakeTarget,
    engine: MakeEngine,
    complete: Complete,
    prompts: Prompts,
    generate: Generate,
) -> None:
    texts = prompts(4, first=3)
    wanted = [generate(FAMILY, tuple(text), 16) for text in texts]
    options = SchedulerOptions(prefill_chunk=8, n_micro_batches=n_micro_batches)
    runner = engine(target(FAMILY, n_blocks=24, block_size=4), None, options)
    done = complete(runner, [job(text) for text in texts])
    assert [completion.token_ids for completion in done] == wanted


def test_the_least_important_gives_up_its_memory(target: MakeTarget, engine: MakeEngine, prompts: Prompts) -> None:
    runner = engine(target(FAMILY, n_blocks=22, block_size=4))
    preempted: dict[int, int] = {}
    for priority in (1, 0):
        preempted[runner.submit(job(prompts(1)[0], n=24, priority=priority))] = -1
    while runner.has_work:
        for seq, event in runner.step():
            if event.stats is not None:
                preempted[seq] = event.stats.preemptions
    assert preempted == {0: 1, 1: 0}


def test_a_full_queue_says_when_to_come_back(
    target: MakeTarget, engine: MakeEngine, prompts: Prompts, idle: Idle
) -> None:
    runner = engine(target(FAMILY), None, SchedulerOptions(max_waiting=2))
    for text in prompts(2):
        runner.submit(job(text, "pld"))
    with pytest.raises(OverloadedError) as caught:
        runner.submit(job(prompts(1)[0], "pld"))
    assert caught.value.retry_after > 0
    assert runner.pool.n_live == 2
    while runner.has_work:
        runner.step()
    idle(runner)


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
    target: MakeTarget,
    engine: MakeEngine,
    idle: Idle,
) -> None:
    runner = engine(target(FAMILY))
    with pytest.raises(kind) as caught:
        runner.submit(job(prompt, "pld", n=n))
    assert caught.value.param == param
    idle(runner)


def test_the_longest_allowed_text_fits_the_smallest_cache(
    target: MakeTarget, engine: MakeEngine, complete: Complete, prompts: Prompts
) -> None:
    text = (prompts(1)[0] * 20)[:480]
    runner = engine(target(FAMILY, n_blocks=126, block_size=4), None, SchedulerOptions(prefill_chunk=100))
    jobs = [job(text, method, n=20) for method in ("autoregressive", "spectra-core")]
    done = complete(runner, jobs)
    assert done[0].token_ids == done[1].token_ids
    assert {completion.finish_reason for completion in done} == {LENGTH}


@pytest.mark.parametrize("style", STYLES)
def test_a_lost_target_changes_no_text_whenever_it_happens(
    style: str, target: MakeTarget, engine: MakeEngine, complete: Complete, prompts: Prompts, idle: Idle
) -> None:
    texts, params = prompts(4), STYLES[style]
    plain = [done.token_ids for done in complete(engine(target(FAMILY)), [job(text, **params) for text in texts])]
    answers = {tuple(text): answer for text, answer in zip(texts, plain, strict=True)}
    for n_steps in range(0, 16, 3):
        runner = engine(target(FAMILY), answers, SchedulerOptions(prefill_chunk=21))
        written: dict[int, list[int]] = {}
        for text, method in zip(texts, METHODS, strict=True):
            written[runner.submit(job(text, method, **params))] = []
        for moment in range(60):
            if moment == n_steps:
                runner.scheduler.lose_target()
                runner.target = target(FAMILY, stages=2)
            for seq, event in runner.step():
                written[seq] += event.token_ids
        assert list(written.values()) == plain
        idle(runner)


class Endless(AlwaysRight):
    """Drafts one chain as long as it may be."""

    name = "endless"

    def propose(self, request: RequestView, budget: int) -> list[Branch]:
        return [Branch([5] * budget, self.name)]


def test_a_tree_never_outgrows_what_a_stage_is_made_for(
    checkpoint: Callable[[str], Path], engine: MakeEngine, complete: Complete
) -> None:
    path = checkpoint(FAMILY)
    made = LocalTarget.load(TargetOptions(str(path), kv_bytes=8 << 20), path)
    options = SchedulerOptions(max_step_rows=4096)
    runner = engine(made, None, options, {"endless": lambda _: Endless({})})
    text = [7] * (made.info.max_model_len - 3)
    (done,) = complete(runner, [Request(text, SamplingParams(max_tokens=3), "endless", max_nodes=5000)])
    assert done.stats.max_nodes_used == MAX_TREE
