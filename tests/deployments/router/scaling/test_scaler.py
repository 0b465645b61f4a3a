"""Pipelines come and go while a router serves: real stages in threads, which exist only while they are held."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from deployments.options import ScalingOptions
from deployments.pipeline.connection import Pipeline
from deployments.router.draft_client import InlineDraftClient
from deployments.router.lane_connection import TargetClient
from deployments.router.router import Router
from deployments.router.scaling import scaler
from engine.errors import TargetLostError
from engine.request import Request
from engine.scheduling.scheduler import SchedulerOptions
from engine.target.info import TargetInfo
from speculators.pool import SpeculatorPool
from tests.deployments.conftest import METHODS, Offline, Stages, job_of, patient
from tests.support.metrics import values
from tests.support.slow_stage import GATE, Gated
from tests.support.waiting import wait_until_async


class Elastic:
    """A router on three pipelines: the first always exists, and the others exist while the router holds them."""

    def __init__(self, path: Path, info: TargetInfo, offline: Offline) -> None:
        self._path, self._info, self._offline = path, info, offline
        self.pipelines: list[Stages | None] = [None] * 3
        self.has_room = True  # for a pipeline that is held
        self.n_held = 0
        self.router: Router
        self.answers: list[tuple[Request, asyncio.Task[list[int]]]] = []

    def make(self, number: int) -> None:
        self.pipelines[number] = Stages(self._path, self._info, 1, [Gated])

    def end(self, number: int) -> None:
        stages, self.pipelines[number] = self.pipelines[number], None
        if stages is not None:
            stages.close()

    def client(self, number: int) -> TargetClient:
        async def connect() -> Pipeline:
            while True:
                stages = self.pipelines[number]
                with contextlib.suppress(TargetLostError):
                    if stages is not None:
                        return await Pipeline.connect(stages.endpoints)
                await asyncio.sleep(0.02)

        async def hold() -> None:
            self.n_held += 1
            try:
                while True:
                    if self.has_room and self.pipelines[number] is None:
                        self.make(number)
                    await asyncio.sleep(0.02)
            finally:
                self.n_held -= 1
                self.end(number)

        return TargetClient(f"lane-{number}", connect, hold=hold if number else None)

    @contextlib.asynccontextmanager
    async def serve(self, running: Sequence[str] = (), grace: float = 0.0, delay: float = 0.01) -> AsyncIterator[None]:
        scaling = ScalingOptions(least=1, most=3, up_delay=delay, down_delay=delay, pending_timeout=0.0)
        few = SchedulerOptions(max_sequences=2)
        options = patient(failover=0.0, grace=grace, scaling=scaling, scheduler=few)
        drafts = InlineDraftClient(SpeculatorPool(), self._info.spec.vocab_size)
        self.router = Router(options, self._info, drafts, [self.client(i) for i in range(3)])
        self.make(0)
        self.router.start(running)
        try:
            yield
        finally:
            GATE.open()
            await self.router.close()
            for number in range(3):
                self.end(number)

    def begin(self, n: int) -> None:
        """Start requests of all methods."""
        for i in range(n):
            job = job_of(i, METHODS[i % 4], max_tokens=60, stop_ids=(), temperature=0.8 * (i % 2))
            self.answers.append((job, asyncio.create_task(self._answer(job))))

    async def _answer(self, job: Request) -> list[int]:
        return [token async for event in self.router.stream(job) for token in event.token_ids]

    async def compare(self) -> None:
        """Wait for all requests; each must get the offline engine's text."""
        for job, answer in self.answers:
            assert await answer == self._offline(job).token_ids

    async def up(self, n: int) -> None:
        await wait_until_async(lambda: sum(lane.is_up for lane in self.router.lanes) == n)

    async def all_run(self, *lanes: int) -> None:
        """Wait until two sequences run in each of these lanes."""
        await wait_until_async(lambda: all(self.router.lanes[i].scheduler.n_running == 2 for i in lanes))


@pytest.fixture
def elastic(tiny_checkpoint: Path, info: TargetInfo, offline: Offline, monkeypatch: pytest.MonkeyPatch) -> Elastic:
    for pause in ("LOOK_S", "LEAVING_S"):
        monkeypatch.setattr(scaler, pause, 0.01)
    return Elastic(tiny_checkpoint, info, offline)


async def test_pipelines_follow_the_load_and_survive_a_loss_with_identical_output(elastic: Elastic) -> None:
    async with elastic.serve():
        assert [lane.is_wanted for lane in elastic.router.lanes] == [True, False, False]
        GATE.close(after=6)
        elastic.begin(12)
        await elastic.up(3)
        assert elastic.n_held == 2
        assert values(elastic.router.metrics_text(), "spectra:pipelines_wanted") == [3]
        await elastic.all_run(1, 2)
        elastic.end(1)  # the hold makes another one
        await wait_until_async(lambda: elastic.router.lanes[1].n_lost == 1)
        await elastic.up(3)
        GATE.open()
        await elastic.compare()
        await elastic.up(1)
        await wait_until_async(lambda: not elastic.n_held)
        state = await elastic.router.state()
        assert (state["lanes"], state["lanes_up"], state["pipelines_lost"], state["sessions"]) == (1, 1, 1, 0)
        assert state["free_blocks"] == state["blocks"]


async def test_sequences_of_a_pipeline_that_is_given_up_continue_elsewhere(elastic: Elastic) -> None:
    async with elastic.serve(running=["lane-2"], grace=3600.0, delay=3600.0):
        await elastic.up(2)
        GATE.close(after=8)
        elastic.begin(4)
        await elastic.all_run(0, 2)
        elastic.router.scaler.bound(1, 1)
        assert not elastic.router.lanes[2].takes
        elastic.router.scaler.bound(2, 2)  # wanted again while it is given up
        assert elastic.router.lanes[2].takes
        elastic.router.scaler._grace = 0.0
        elastic.router.scaler.bound(1, 1)
        await wait_until_async(lambda: not elastic.n_held)
        assert not elastic.router.lanes[2].sequences
        GATE.open()
        await elastic.compare()
        text = elastic.router.metrics_text()
        assert values(text, "spectra:sequences_moved_total") == [2]
        assert values(text, "spectra:pipelines_lost_total") == [0]


async def test_a_pipeline_that_does_not_start_is_reported_and_delays_no_request(
    elastic: Elastic, caplog: pytest.LogCaptureFixture
) -> None:
    async with elastic.serve(delay=3600.0):
        elastic.has_room = False
        with caplog.at_level(logging.ERROR):
            elastic.router.scaler.bound(2, 3)
            await wait_until_async(lambda: elastic.router.scaler.n_overdue == 1)
        assert "lane-1 has been wanted for" in caplog.text
        elastic.begin(2)
        await elastic.compare()
        for name in ("overdue", "pending"):
            assert values(elastic.router.metrics_text(), f"spectra:pipelines_{name}") == [1]
        elastic.has_room = True
        await wait_until_async(lambda: not elastic.router.scaler.n_overdue)


async def test_the_only_pipeline_that_is_up_is_not_given_up(elastic: Elastic) -> None:
    async with elastic.serve(running=["lane-1"], delay=3600.0):
        await elastic.up(2)
        GATE.close(after=8)
        elastic.begin(4)
        await elastic.all_run(0, 1)
        elastic.end(0)
        await elastic.up(1)
        elastic.router.scaler.bound(1, 1)
        GATE.open()
        await elastic.compare()
        assert elastic.n_held == 1
        elastic.make(0)
        await wait_until_async(lambda: not elastic.n_held)
