"""A hung stage or a request that kills its stages is found, and no other text changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from deployments.options import RouterOptions
from deployments.pipeline.step_deadline import CALM_ANSWERS, TIMES_COLD, TIMES_PREDICTED, WARM_UP_STEPS, StepDeadlines
from engine.errors import StepFailedError
from engine.loop import Completion
from engine.request import Request
from engine.stage.base import Activations
from engine.stage.stage import Stage
from engine.step import Step, Work
from engine.step_cost import StepCosts
from tests.support.waiting import LIMIT_S, wait_until_async

METHODS = ("autoregressive", "pld", "spectra-core", "pld+spectra-core")
MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]


class HangingStage(Stage):
    """Hangs in its twelfth step, until the test is over."""

    go_on = threading.Event()
    n_hanging = 0
    _n_steps = 0

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        self._n_steps += 1
        if self._n_steps == 12:
            HangingStage.n_hanging += 1
            HangingStage.go_on.wait()
        return super().forward(step, incoming)


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """No thread hangs after the test."""
    HangingStage.go_on.clear()
    HangingStage.n_hanging = 0
    yield
    HangingStage.go_on.set()


@pytest.mark.parametrize(
    ("n_stages", "place", "sampling"), [(1, 0, {}), (2, 1, {"temperature": 0.8}), (3, 1, {})], ids=str
)
async def test_texts_are_the_same_after_a_hung_stage_is_replaced(
    n_stages: int,
    place: int,
    sampling: dict[str, Any],
    serving: Any,
    make_job: MakeJob,
    offline: Offline,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = [make_job(number, METHODS[number % 4], max_tokens=30, stop_ids=(), **sampling) for number in range(4)]
    kinds = [HangingStage if i == place else Stage for i in range(n_stages)]
    overdue = StepDeadlines.overdue

    def overdue_once_it_hangs(deadlines: StepDeadlines, now: float) -> str:
        return overdue(deadlines, now + 1e6) if HangingStage.n_hanging and not served.hangs else ""

    monkeypatch.setattr(StepDeadlines, "overdue", overdue_once_it_hangs)
    options = RouterOptions("tiny", step_deadline=LIMIT_S, max_wait=None)
    async with serving(n_stages, kinds, options=options) as served:
        answers = [asyncio.create_task(served.answer(job)) for job in jobs]
        await wait_until_async(lambda: HangingStage.n_hanging and served.hangs)
        assert all("was not answered within" in reason for _, reason in served.hangs)
        served.replace()
        for job, answer in zip(jobs, await asyncio.gather(*answers), strict=True):
            assert answer.token_ids == offline(job).token_ids
        assert (await served.settled())["pipelines_lost"] >= 1


def step(step_id: int, n_rows: int = 1) -> Step:
    return Step(step_id, [Work(0, 0, [5] * n_rows)])


def warm(deadlines: StepDeadlines) -> None:
    deadlines.restart(0.0)
    for number in range(WARM_UP_STEPS):
        deadlines.sent(step(number), 0.0)
        deadlines.answered(number, 0.0)


def patience_of(deadlines: StepDeadlines, since: float) -> float:
    """Seconds after ``since`` when the step in flight is overdue, to a hundredth."""
    return next(n / 100 for n in range(10_000) if deadlines.overdue(since + n / 100)) - 0.01


def test_only_the_oldest_step_counts_from_the_answer_before_it() -> None:
    deadlines = StepDeadlines(10.0, None)
    warm(deadlines)
    deadlines.sent(step(100), 0.0)
    deadlines.sent(step(101), 0.0)
    assert deadlines.overdue(9.9) == ""
    deadlines.answered(100, 9.9)
    assert deadlines.overdue(19.8) == ""
    assert "step 101" in deadlines.overdue(20.0)
    deadlines.answered(101, 20.0)
    assert deadlines.overdue(1000.0) == ""


def test_large_steps_and_the_first_steps_of_a_pipeline_have_longer() -> None:
    deadlines = StepDeadlines(1.0, StepCosts({1: ((1, 101), (0.01, 1.01))}))
    warm(deadlines)
    deadlines.sent(step(100, n_rows=101), 0.0)
    assert patience_of(deadlines, 0.0) == pytest.approx(TIMES_PREDICTED * 1.01, abs=0.02)
    deadlines.restart(0.0)
    deadlines.sent(step(100), 0.0)
    assert patience_of(deadlines, 0.0) == pytest.approx(TIMES_COLD, abs=0.02)


@pytest.mark.parametrize(
    ("sent_at", "overdue_after"),
    [
        (0.0, 51.0),  # held up for 50 s: no hang
        (1000.0, 1051.0),  # sent after an idle time
        (1049.9, 1051.0),  # an excuse gives no credit for the future
    ],
)
def test_a_router_that_was_held_up_excuses_its_pipeline(sent_at: float, overdue_after: float) -> None:
    deadlines = StepDeadlines(1.0, None)
    warm(deadlines)
    deadlines.sent(step(100), sent_at)
    deadlines.excuse(50.0, overdue_after - 1.0)
    assert deadlines.overdue(overdue_after - 0.1) == ""
    assert deadlines.overdue(overdue_after + 0.1) != ""


def test_each_hang_report_doubles_the_deadline_until_many_steps_are_in_time() -> None:
    deadlines = StepDeadlines(1.0, None)
    for patience in (2.0, 4.0):
        deadlines.reported()
        warm(deadlines)
        deadlines.sent(step(100), 0.0)
        assert patience_of(deadlines, 0.0) == pytest.approx(patience, abs=0.02)
    for number in range(CALM_ANSWERS):
        deadlines.sent(step(number), 0.0)
        deadlines.answered(number, 0.0)
    deadlines.sent(step(1000), 0.0)
    assert deadlines.overdue(1.1) != ""


POISON = 311


class Dies(Stage):
    """Loses its device over a prompt with the poison."""

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        if any(POISON in work.tokens and work.tree is None for work in step.work):
            raise torch.AcceleratorError("poisoned")
        return super().forward(step, incoming)


async def keep_alive(served: Any, kinds: list[type[Stage]]) -> None:
    """Replace a pipeline with a dead stage by one of the same kind, like the supervisor."""
    while True:
        if not all(worker.is_alive for worker in served.stages.workers):
            served.replace(kinds)
        await asyncio.sleep(0.01)


async def test_a_request_that_kills_every_pipeline_fails_alone(
    serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    jobs = [make_job(number, METHODS[number % 4], max_tokens=20, stop_ids=()) for number in range(4)]
    fatal = make_job(10)
    kinds = [Dies] * 2
    async with serving(2, kinds) as served, asyncio.timeout(LIMIT_S):
        keeper = asyncio.create_task(keep_alive(served, kinds))
        answers = [asyncio.create_task(served.answer(job)) for job in jobs]
        with pytest.raises(StepFailedError, match="lost 3 times"):
            await served.answer(Request([*fatal.prompt, POISON], fatal.params))
        for job, answer in zip(jobs, await asyncio.gather(*answers), strict=True):
            assert answer.token_ids == offline(job).token_ids
        assert (await served.settled())["pipelines_lost"] == 3
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
