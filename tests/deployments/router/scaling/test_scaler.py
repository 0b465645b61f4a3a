"""Pipelines come and go while a router serves: real stages in threads, which exist only while they are held."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deployments.options import ScalingOptions
from deployments.pipeline.connection import Pipeline
from deployments.router.drafting import InlineDraftClient
from deployments.router.lane_connection import TargetClient
from deployments.router.router import Router
from deployments.router.scaling import scaler
from engine.errors import TargetLostError
from engine.scheduling.scheduler import SchedulerOptions
from engine.target_model.info import TargetInfo
from speculators.pool import SpeculatorPool
from tests.deployments.conftest import METHODS, Offline, ServedPipelines, job_of, patient
from tests.deployments.slow_stage import GATE, Gated
from tests.deployments.threaded_stages import ThreadedStages
from tests.support.metrics import values
from tests.support.waiting import wait_until_async


class Elastic(ServedPipelines):
    """A router on three pipelines: the first always exists, and the others exist while the router holds them."""

    pipelines: list[Any]

    def __init__(self, path: Path, info: TargetInfo, offline: Offline) -> None:
        super().__init__(path, info, [None] * 3, offline)
        self.has_room = True  # for a pipeline that is held
        self.n_held = 0

    def make(self, number: int) -> None:
        self.pipelines[number] = ThreadedStages(self.path, self.info, 1, [Gated])

    def remove(self, number: int) -> None:
        stages, self.pipelines[number] = self.pipelines[number], None
        if stages is not None:
            stages.close()

    async def connect(self, lane: int = 0) -> Pipeline:
        while True:
            stages = self.pipelines[lane]
            with contextlib.suppress(TargetLostError):
                if stages is not None:
                    return await Pipeline.connect(stages.endpoints)
            await asyncio.sleep(0.02)

    async def hold(self, lane: int) -> None:
        self.n_held += 1
        try:
            while True:
                if self.has_room and self.pipelines[lane] is None:
                    self.make(lane)
                await asyncio.sleep(0.02)
        finally:
            self.n_held -= 1
            self.remove(lane)

    def target(self, lane: int) -> TargetClient:
        hold = partial(self.hold, lane) if lane else None
        return TargetClient(f"lane-{lane}", partial(self.connect, lane), hold=hold)

    @contextlib.asynccontextmanager
    async def serve(self, running: Sequence[str] = (), grace: float = 0.0, delay: float = 0.01) -> AsyncIterator[None]:
        scaling = ScalingOptions(least=1, most=3, up_delay=delay, down_delay=delay, pending_timeout=0.0)
        few = SchedulerOptions(max_sequences=2)
        options = patient(failover=0.0, grace=grace, scaling=scaling, scheduler=few)
        drafts = InlineDraftClient(SpeculatorPool(), self.info.spec.vocab_size)
        self.router = Router(options, self.info, drafts, [self.target(i) for i in range(3)])
        self.make(0)
        self.router.start(running)
        try:
            yield
            await self.compare(self.begun)
        finally:
            GATE.open()
            await self.router.close()
            for number in range(3):
                self.remove(number)

    def begin_many(self, n: int) -> None:
        for i in range(n):
            self.begin(job_of(i, METHODS[i % 4], max_tokens=60, stop_ids=(), temperature=0.8 * (i % 2)))

    async def n_up(self, n: int) -> None:
        """Wait until ``n`` pipelines are up."""
        await wait_until_async(lambda: sum(lane.is_up for lane in self.router.lanes) == n)

    async def all_run(self, *lanes: int) -> None:
        """Wait until two sequences run in each of these lanes."""
        await wait_until_async(lambda: all(self.router.lanes[i].scheduler.n_running == 2 for i in lanes))


@pytest.fixture
def elastic(tiny_checkpoint: Path, info: TargetInfo, offline: Offline, monkeypatch: pytest.MonkeyPatch) -> Elastic:
    for pause in ("DECIDE_S", "DRAIN_CHECK_S"):
        monkeypatch.setattr(scaler, pause, 0.01)
    return Elastic(tiny_checkpoint, info, offline)


async def test_pipelines_follow_the_load_and_survive_a_loss_with_identical_output(elastic: Elastic) -> None:
    async with elastic.serve():
        assert [lane.is_enabled for lane in elastic.router.lanes] == [True, False, False]
        GATE.close(after=6)
        elastic.begin_many(12)
        await elastic.n_up(3)
        assert elastic.n_held == 2
        assert values(elastic.router.metrics_text(), "spectra:pipelines_wanted") == [3]
        await elastic.all_run(1, 2)
        elastic.remove(1)  # the hold makes another one
        await wait_until_async(lambda: elastic.router.lanes[1].n_lost == 1)
        await elastic.n_up(3)
        GATE.open()
        await elastic.compare(elastic.begun)
        await elastic.n_up(1)
        await wait_until_async(lambda: not elastic.n_held)
        state = await elastic.router.state()
        assert (state["lanes"], state["lanes_up"], state["pipelines_lost"], state["sessions"]) == (1, 1, 1, 0)
        assert state["free_blocks"] == state["blocks"]


async def test_sequences_of_a_pipeline_that_is_given_up_continue_elsewhere(elastic: Elastic) -> None:
    async with elastic.serve(running=["lane-2"], grace=3600.0, delay=3600.0):
        await elastic.n_up(2)
        GATE.close(after=8)
        elastic.begin_many(4)
        await elastic.all_run(0, 2)
        elastic.router.scaler.set_bounds(1, 1)
        assert not elastic.router.lanes[2].accepts_requests
        elastic.router.scaler.set_bounds(2, 2)  # requested again while it drains
        assert elastic.router.lanes[2].accepts_requests
        elastic.router.scaler._grace = 0.0
        elastic.router.scaler.set_bounds(1, 1)
        await wait_until_async(lambda: not elastic.n_held)
        assert not elastic.router.lanes[2].sequences
        GATE.open()
        await elastic.compare(elastic.begun)
        text = elastic.router.metrics_text()
        assert values(text, "spectra:sequences_moved_total") == [2]
        assert values(text, "spectra:pipelines_lost_total") == [0]


async def test_a_pipeline_that_does_not_start_is_reported_and_delays_no_request(
    elastic: Elastic, caplog: pytest.LogCaptureFixture
) -> None:
    async with elastic.serve(delay=3600.0):
        elastic.has_room = False
        with caplog.at_level(logging.ERROR):
            elastic.router.scaler.set_bounds(2, 3)
            await wait_until_async(lambda: elastic.router.scaler.n_overdue == 1)
        assert "lane-1 was requested" in caplog.text
        elastic.begin_many(2)
        await elastic.compare(elastic.begun)
        for name in ("overdue", "pending"):
            assert values(elastic.router.metrics_text(), f"spectra:pipelines_{name}") == [1]
        elastic.has_room = True
        await wait_until_async(lambda: not elastic.router.scaler.n_overdue)


async def test_the_only_pipeline_that_is_up_is_not_given_up(elastic: Elastic) -> None:
    async with elastic.serve(running=["lane-1"], delay=3600.0):
        await elastic.n_up(2)
        GATE.close(after=8)
        elastic.begin_many(4)
        await elastic.all_run(0, 1)
        elastic.remove(0)
        await elastic.n_up(1)
        elastic.router.scaler.set_bounds(1, 1)
        GATE.open()
        await elastic.compare(elastic.begun)
        assert elastic.n_held == 1
        elastic.make(0)
        await wait_until_async(lambda: not elastic.n_held)
