"""Step times of a pipeline behind sockets: measured, kept, and gone without a trace when the router takes over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from deployments.options import RouterOptions
from deployments.pipeline.connection import MEASURE_ATTEMPTS, Pipeline, measure_pipeline, step_costs
from deployments.pipeline.leadership import PipelineInUseError
from deployments.router.draft_client import InlineDraftClient
from deployments.router.router import Router
from engine.errors import TargetLostError
from engine.loop import Completion
from engine.request import Request
from engine.scheduling.scheduler import SchedulerOptions
from engine.stage.base import Activations
from engine.stage.stage import Stage
from engine.step import Step
from engine.step_cost import StepCosts, read_costs, write_costs
from engine.target.step_timing import GRID
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions
from tests.support import slow_stage

MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]
SLOW_S = 0.005  # seconds more per step


class Slow(slow_stage.Slow):
    """A little."""

    pause_s = SLOW_S


class FailsInLargeSteps(Stage):
    """As a GPU without memory for them would; trees of a few nodes are no trouble."""

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        if sum(len(work.tokens) for work in step.work) > 1024:
            raise MemoryError("too many rows")
        return super().forward(step, incoming)


class Connections:
    """A way to connect that remembers what it has connected."""

    def __init__(self, connect: Callable[[], Awaitable[Pipeline]]) -> None:
        self.connected: list[Pipeline] = []
        self._to = connect

    async def __call__(self) -> Pipeline:
        pipeline = await self._to()
        self.connected.append(pipeline)
        return pipeline


@asynccontextmanager
async def unrouted(serving: Any, *options: Any, **more: Any) -> AsyncIterator[Any]:
    """Stages before a router has connected, as they are when a deployment starts."""
    async with serving(*options, **more) as served:
        await served.router.close()
        yield served


def route(served: Any, costs: StepCosts | None, **limits: int) -> None:
    """Start a router on the stages, with speculators that know the costs."""
    pool = SpeculatorPool(SpeculatorOptions(step_costs=costs))
    scheduler = SchedulerOptions(n_micro_batches=len(served.stages.workers), **limits)
    draft_client = InlineDraftClient(pool, served.info.spec.vocab_size)
    served.router = Router(RouterOptions("tiny", scheduler=scheduler), served.info, draft_client, [served.target(0)])
    served.router.start()


@pytest.mark.parametrize("n_stages", [1, 2])
async def test_costs_are_plausible_and_the_pipeline_works_afterwards(
    n_stages: int, serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    async with unrouted(serving, n_stages) as served:
        pipeline = await served.connect()
        costs = await measure_pipeline(pipeline, served.info)
        pipeline.close()
        assert served.stages.n_sequences == 0
        assert {batch: len(rows) for batch, (rows, _) in costs.curves.items()} == {b: len(g) for b, g in GRID.items()}
        one, full = costs.seconds(1, [1])[0], costs.seconds(16, [272])[0]
        assert 1e-4 < one < full < 30
        route(served, costs)
        jobs = [
            make_job(number, method, **sampling)
            for number in range(4)
            for method in ("auto", "pld")
            for sampling in ({}, {"temperature": 0.8})
        ]
        answers = await asyncio.gather(*(served.answer(job) for job in jobs))
        assert [answer.token_ids for answer in answers] == [offline(job).token_ids for job in jobs]
        await served.settled()


async def test_the_time_of_every_stage_counts(serving: Any) -> None:
    found = []
    for kinds in ((Slow,), (Slow, Slow)):
        async with unrouted(serving, len(kinds), kinds) as served:
            pipeline = await served.connect()
            costs = await measure_pipeline(pipeline, served.info)
            pipeline.close()
            found.append(costs.seconds(1, [1])[0])
    assert found[0] >= SLOW_S
    assert found[1] >= 2 * SLOW_S


async def test_a_pipeline_that_is_lost_meanwhile_is_reported(serving: Any) -> None:
    async with unrouted(serving, 2, [Slow, Slow]) as served:
        pipeline = await served.connect()
        measuring = asyncio.create_task(measure_pipeline(pipeline, served.info))
        await asyncio.sleep(0.3)
        assert not measuring.done()
        served.stages.workers[1].close()
        with pytest.raises(TargetLostError):
            await measuring
        pipeline.close()


async def test_a_step_that_fails_is_reported_with_its_reason(serving: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    async with unrouted(serving, 1, [FailsInLargeSteps]) as served:
        pipeline = await served.connect()
        with pytest.raises(TargetLostError, match="MemoryError: too many rows"):
            await measure_pipeline(pipeline, served.info)
        pipeline.close()


async def test_a_second_start_reads_what_the_first_one_measured(serving: Any, tmp_path: Path) -> None:
    file = str(tmp_path / "cache" / "costs.json")
    async with unrouted(serving) as served:
        first = Connections(served.connect)
        costs = await step_costs(first, file, served.info)
        assert len(first.connected) == 1
        assert costs == read_costs(Path(file))
        second = Connections(served.connect)
        assert await step_costs(second, file, served.info) == costs
        assert second.connected == []
        for nowhere in ("", str(tmp_path)):  # no file, or none that could be written: measured, and used all the same
            third = Connections(served.connect)
            assert (await step_costs(third, nowhere, served.info)).curves.keys() == costs.curves.keys()
            assert len(third.connected) == 1
        Path(file).write_text("half a fi")
        assert (await step_costs(served.connect, file, served.info)) == read_costs(Path(file))


async def test_a_known_file_needs_no_target(tmp_path: Path, info: Any) -> None:
    async def connect() -> Pipeline:
        raise AssertionError("nothing is there to connect to")

    known = StepCosts({1: ((1, 2), (0.1, 0.2))})
    write_costs(tmp_path / "costs.json", known)
    assert await step_costs(connect, str(tmp_path / "costs.json"), info) == known


async def test_nothing_is_measured_where_another_router_serves(tmp_path: Path, info: Any) -> None:
    known = StepCosts({1: ((1, 2), (0.1, 0.2))})

    async def connect() -> Pipeline:
        raise PipelineInUseError(known)

    assert await step_costs(connect, str(tmp_path / "costs.json"), info) == known
    assert list(tmp_path.iterdir()) == []


async def test_a_pipeline_lost_once_is_measured_when_it_is_back(serving: Any) -> None:
    async with unrouted(serving, 1, [Slow]) as served:
        start = Connections(served.connect)
        measuring = asyncio.create_task(step_costs(start, "", served.info))
        await asyncio.sleep(0.3)
        served.replace()
        costs = await measuring
        assert list(costs.curves) == list(GRID)
        assert len(start.connected) == 2


async def test_a_target_that_fails_when_it_is_measured_serves_without_costs(
    serving: Any, make_job: MakeJob, offline: Offline, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with unrouted(serving, 1, [FailsInLargeSteps]) as served:
        start = Connections(served.connect)
        assert await step_costs(start, str(tmp_path / "costs.json"), served.info) is None
        assert len(start.connected) == MEASURE_ATTEMPTS
        assert list(tmp_path.iterdir()) == []
        route(served, None)
        job = make_job(3, "auto")
        assert (await served.answer(job)).token_ids == offline(job).token_ids
        await served.settled()


@pytest.mark.parametrize("n_stages", [1, 2])
async def test_auto_in_any_company_writes_the_offline_engines_text_at_any_price(
    n_stages: int, serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    methods = ("auto", "autoregressive", "auto", "pld+spectra-core", "suffix+token-recycling")
    for per_row in (0.0, 0.1, 9.0):
        costs = StepCosts({batch: ((batch, 200), (1.0, 1.0 + (200 - batch) * per_row)) for batch in (1, 8)})
        async with unrouted(serving, n_stages) as served:
            route(served, costs, max_sequences=5, prefill_chunk=8)
            jobs = [
                make_job(number, methods[number % 5], temperature=0.8 * (number % 2), max_tokens=20 + number)
                for number in range(15)
            ]
            answers = await asyncio.gather(*(served.answer(job) for job in jobs))
            assert [answer.token_ids for answer in answers] == [offline(job).token_ids for job in jobs]
            drafted = [
                a.events[-1].stats.drafted_tokens for a, j in zip(answers, jobs, strict=True) if j.method == "auto"
            ]
            assert any(drafted) == (per_row < 1)
            await served.settled()


async def test_a_small_cache_is_measured_as_far_as_it_reaches(
    serving: Any, make_job: MakeJob, offline: Offline, small_cache: Any
) -> None:
    async with unrouted(serving, 2, target=small_cache) as served:
        costs = await step_costs(served.connect, "", small_cache)
        assert list(costs.curves) == [1, 2]
        route(served, costs)
        jobs = [make_job(number, "auto", temperature=0.7, max_tokens=90) for number in range(6)]
        answers = await asyncio.gather(*(served.answer(job) for job in jobs))
        assert [answer.token_ids for answer in answers] == [offline(job).token_ids for job in jobs]
        await served.settled()
