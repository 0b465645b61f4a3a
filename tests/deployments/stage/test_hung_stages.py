"""A stage that hangs is found by the step that is not answered, and costs no text."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deployments.options import RouterOptions
from deployments.pipeline.step_deadline import CALM_ANSWERS, TIMES_COLD, TIMES_PREDICTED, WARM_UP_STEPS, StepDeadlines
from engine.loop import Completion
from engine.request import Request
from engine.stage.base import Activations
from engine.stage.stage import Stage
from engine.step import Step, Work
from engine.step_cost import StepCosts

METHODS = ("autoregressive", "pld", "spectra-core", "pld+spectra-core")
MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]


class Hangs(Stage):
    """Hangs in its twelfth step, until the test is over."""

    go_on = threading.Event()
    n_hanging = 0
    _n_steps = 0

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        self._n_steps += 1
        if self._n_steps == 12:
            Hangs.n_hanging += 1
            Hangs.go_on.wait()
        return super().forward(step, incoming)


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """No thread hangs on behind the test."""
    Hangs.go_on.clear()
    Hangs.n_hanging = 0
    yield
    Hangs.go_on.set()


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8}], ids=["greedy", "seeded"])
@pytest.mark.parametrize(("n_stages", "place"), [(1, 0), (2, 0), (2, 1), (3, 1)])
async def test_texts_are_the_same_after_a_stage_that_hung_is_replaced(
    n_stages: int, place: int, sampling: dict[str, Any], serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    jobs = [make_job(number, METHODS[number % 4], max_tokens=60, stop_ids=(), **sampling) for number in range(4)]
    kinds = [Hangs if i == place else Stage for i in range(n_stages)]
    async with serving(n_stages, kinds, options=RouterOptions("tiny", step_deadline=1.0)) as served:
        answers = [asyncio.create_task(served.answer(job)) for job in jobs]
        await until(lambda: bool(served.hangs))
        assert Hangs.n_hanging == 1
        assert all("was not answered within" in reason for _, reason in served.hangs)
        served.replace()
        for job, answer in zip(jobs, await asyncio.gather(*answers), strict=True):
            assert answer.token_ids == offline(job).token_ids
        assert (await served.settled())["pipelines_lost"] >= 1


async def test_streams_of_a_lane_that_hangs_go_on_in_another(serving: Any, make_job: MakeJob, offline: Offline) -> None:
    jobs = [make_job(number, METHODS[number % 4], max_tokens=60, stop_ids=()) for number in range(6)]
    chosen = RouterOptions("tiny", step_deadline=1.0, failover=0.0)
    async with serving(1, n_lanes=2, options=chosen) as served:
        await until(lambda: all(lane.is_up for lane in served.router.lanes))
        served.replace([Hangs], lane=1)
        await until(lambda: not served.router.lanes[1].is_up)
        await until(lambda: served.router.lanes[1].is_up)
        answers = [asyncio.create_task(served.answer(job)) for job in jobs]
        await until(lambda: bool(served.hangs))
        assert served.hangs[0][0] == 1
        served.pipelines[1].close()
        for job, answer in zip(jobs, await asyncio.gather(*answers), strict=True):
            assert answer.token_ids == offline(job).token_ids


async def test_a_report_that_fails_keeps_no_lane_from_reconnecting(
    serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    job = make_job(1, "pld", max_tokens=60, stop_ids=())
    async with serving(1, [Hangs], options=RouterOptions("tiny", step_deadline=1.0)) as served:
        served.hangs = None  # so that telling raises
        answer = asyncio.create_task(served.answer(job))
        await until(lambda: served.router.lanes[0].n_lost > 0)
        served.replace()
        assert (await answer).token_ids == offline(job).token_ids


def step(step_id: int, n_rows: int = 1) -> Step:
    return Step(step_id, [Work(0, 0, [5] * n_rows)])


def warm(deadlines: StepDeadlines) -> None:
    deadlines.restart(0.0)
    for number in range(WARM_UP_STEPS):
        deadlines.sent(step(number), 0.0)
        deadlines.answered(number, 0.0)


def test_only_the_oldest_step_counts_and_only_since_the_answer_before_it() -> None:
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


def test_a_large_step_has_longer_by_what_was_measured() -> None:
    deadlines = StepDeadlines(1.0, StepCosts({1: ((1, 101), (0.01, 1.01))}))
    warm(deadlines)
    deadlines.sent(step(100, n_rows=101), 0.0)
    assert deadlines.overdue(TIMES_PREDICTED * 1.01 - 0.01) == ""
    assert deadlines.overdue(TIMES_PREDICTED * 1.01 + 0.01) != ""


def test_the_first_steps_of_a_pipeline_have_longer() -> None:
    deadlines = StepDeadlines(1.0, None)
    warm(deadlines)
    deadlines.restart(0.0)
    deadlines.sent(step(100), 0.0)
    assert deadlines.overdue(TIMES_COLD - 0.01) == ""
    assert deadlines.overdue(TIMES_COLD + 0.01) != ""


def test_a_watcher_that_was_held_up_reports_no_hang() -> None:
    deadlines = StepDeadlines(1.0, None)
    warm(deadlines)
    deadlines.sent(step(100), 0.0)
    deadlines.excuse(50.0, 50.0)
    assert deadlines.overdue(50.9) == ""
    assert deadlines.overdue(51.1) != ""


def test_a_step_sent_after_an_idle_time_is_excused_too() -> None:
    deadlines = StepDeadlines(1.0, None)
    warm(deadlines)
    deadlines.sent(step(100), 1000.0)
    deadlines.excuse(50.0, 1050.0)
    assert deadlines.overdue(1050.9) == ""
    assert deadlines.overdue(1051.1) != ""


def test_an_excuse_is_no_loan_for_the_time_to_come() -> None:
    deadlines = StepDeadlines(1.0, None)
    warm(deadlines)
    deadlines.sent(step(100), 1049.9)
    deadlines.excuse(50.0, 1050.0)
    assert deadlines.overdue(1051.1) != ""


def test_after_every_suspicion_steps_have_twice_as_long_until_all_is_calm_for_long() -> None:
    deadlines = StepDeadlines(1.0, None)
    for patience in (2.0, 4.0):
        deadlines.reported()
        warm(deadlines)
        deadlines.sent(step(100), 0.0)
        assert deadlines.overdue(patience - 0.1) == ""
        assert deadlines.overdue(patience + 0.1) != ""
    for number in range(CALM_ANSWERS):
        deadlines.sent(step(number), 0.0)
        deadlines.answered(number, 0.0)
    deadlines.sent(step(1000), 0.0)
    assert deadlines.overdue(1.1) != ""
