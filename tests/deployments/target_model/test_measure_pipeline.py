"""Step times of a pipeline over sockets: measured, kept, and without effect on the router that follows."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from deployments.pipeline.connection import MEASURE_ATTEMPTS, Pipeline, measure_pipeline, step_costs
from deployments.pipeline.leadership import PipelineInUseError
from deployments.router.drafting import InlineDraftClient
from engine.errors import TargetLostError
from engine.stage.base import Activations
from engine.stage.stage import Stage
from engine.step import Step
from engine.step_cost import StepCosts, read_costs
from engine.target_model import step_timing
from engine.target_model.info import TargetInfo
from speculators.method import SpeculatorOptions
from speculators.pool import SpeculatorPool
from tests.deployments.conftest import ServedPipelines, Serving, job_of
from tests.deployments.slow_stage import GATE, Gated
from tests.support.waiting import LIMIT_S, wait_until_async

KNOWN = StepCosts({1: ((1, 2), (0.1, 0.2))})
GRID = {1: (0, 8), 2: (0, 8), 4: (0, 8)}


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_timing, "GRID", GRID)
    monkeypatch.setattr(step_timing, "PROMPT_ROWS", step_timing.PROMPT_ROWS[:2])
    monkeypatch.setattr(step_timing, "REPEATS", 1)


class FailsInLargeSteps(Stage):
    """Fails as a GPU without memory does; trees of a few nodes are no trouble."""

    def forward(self, step: Step, incoming: Activations | None) -> Activations:
        if sum(len(work.tokens) for work in step.work) > 50:
            raise MemoryError("too many rows")
        return super().forward(step, incoming)


def route(served: ServedPipelines, costs: StepCosts | None) -> None:
    """Start a router whose speculators know the costs."""
    drafts = InlineDraftClient(SpeculatorPool(SpeculatorOptions(step_costs=costs)), served.info.spec.vocab_size)
    served.router = served.another_router(draft_client=drafts)
    served.router.start()


async def test_a_measured_pipeline_is_empty_and_writes_the_offline_engines_texts(serving: Serving) -> None:
    async with serving(2) as served:
        await served.router.close()
        pipeline = await served.connect()
        costs = await measure_pipeline(pipeline, served.info, LIMIT_S)
        pipeline.close()
        assert served.stages.n_sequences == 0
        assert {batch: len(rows) for batch, (rows, _) in costs.curves.items()} == {b: len(g) for b, g in GRID.items()}
        assert all(seconds > 0 for _, times in costs.curves.values() for seconds in times)
        route(served, costs)
        await served.check(*(job_of(n, ("auto", "pld")[n % 2], temperature=0.8 * (n > 3)) for n in range(8)))


async def test_a_pipeline_lost_while_it_is_measured_is_reported_and_measured_when_it_is_back(serving: Serving) -> None:
    async with serving(2, [Gated] * 2) as served:
        await served.router.close()
        GATE.close(after=6)
        pipeline = await served.connect()
        measuring = asyncio.create_task(measure_pipeline(pipeline, served.info, LIMIT_S))
        worker = served.stages.workers[1]
        await wait_until_async(lambda: worker.n_sequences > 0)
        worker.close()
        with pytest.raises(TargetLostError):
            await measuring
        pipeline.close()
        served.replace([Gated] * 2)
        GATE.close(after=6)
        start = AsyncMock(wraps=served.connect)
        costs = asyncio.create_task(step_costs(start, "", served.info, LIMIT_S))
        await wait_until_async(lambda: served.stages.workers[1].n_sequences > 0)
        served.replace()
        GATE.open()
        assert list((await costs).curves) == list(GRID)  # type: ignore[union-attr]
        assert start.await_count == 2


async def test_a_second_start_reads_the_step_times_of_the_first(serving: Serving, tmp_path: Path) -> None:
    file = tmp_path / "cache" / "costs.json"
    async with serving() as served:
        await served.router.close()
        connect = AsyncMock(wraps=served.connect)
        costs = await step_costs(connect, str(file), served.info, LIMIT_S)
        assert costs is not None
        assert costs == read_costs(file)
        assert await step_costs(connect, str(file), served.info, LIMIT_S) == costs
        assert connect.await_count == 1
        for nowhere in ("", str(tmp_path)):  # no file, or one that cannot be written: measured, and used all the same
            measured = await step_costs(connect, nowhere, served.info, LIMIT_S)
            assert measured is not None
            assert measured.curves.keys() == costs.curves.keys()
        file.write_text("half a fi")
        assert await step_costs(connect, str(file), served.info, LIMIT_S) == read_costs(file)
        assert connect.await_count == 4


async def test_nothing_is_measured_on_a_pipeline_that_another_router_serves_on(
    tmp_path: Path, info: TargetInfo
) -> None:
    async def connect() -> Pipeline:
        raise PipelineInUseError(KNOWN)

    assert await step_costs(connect, str(tmp_path / "costs.json"), info) == KNOWN
    assert list(tmp_path.iterdir()) == []


async def test_a_target_that_fails_when_it_is_measured_serves_without_costs(
    serving: Serving, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with serving(1, [FailsInLargeSteps]) as served:
        await served.router.close()
        start = AsyncMock(wraps=served.connect)
        assert await step_costs(start, str(tmp_path / "costs.json"), served.info, LIMIT_S) is None
        assert start.await_count == MEASURE_ATTEMPTS
        assert "MemoryError: too many rows" in caplog.text
        assert list(tmp_path.iterdir()) == []
        route(served, None)
        await served.check(job_of(3, "auto"))
