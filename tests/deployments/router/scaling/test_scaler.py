"""Pipelines come and go under a router that serves: real stages in threads, which exist only while they are held."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from deployments.options import RouterOptions, ScalingOptions
from deployments.pipeline.connection import Pipeline
from deployments.router.draft_client import InlineDraftClient
from deployments.router.lane_connection import TargetClient
from deployments.router.router import Router
from engine.errors import TargetLostError
from engine.loop import Completion
from engine.request import Request
from engine.scheduling.scheduler import SchedulerOptions
from engine.target.info import TargetInfo
from speculators.pool import SpeculatorPool
from tests.deployments.conftest import Stages
from tests.support.slow_stage import Slow

METHODS = ("autoregressive", "pld", "spectra-core", "pld+spectra-core")
FAST = ScalingOptions(least=1, most=3, up_delay=0.3, down_delay=1.5, pending_timeout=0.5)
MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]
Work = Callable[[int, int], tuple[list[Request], list[list[int]]]]


class Elastic:
    """Pipelines of which the first is always there and the others are while a router holds them."""

    def __init__(self, path: Path, info: TargetInfo, most: int) -> None:
        self._path, self._info = path, info
        self.pipelines: list[Stages | None] = [None] * most
        self.has_room = True  # for a pipeline that is held
        self.n_held = 0
        self.make(0)

    def make(self, number: int) -> None:
        self.pipelines[number] = Stages(self._path, self._info, 1, [Slow])

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
                    await asyncio.sleep(0.05)
            finally:
                self.n_held -= 1
                self.end(number)

        return TargetClient(f"lane-{number}", connect, hold=hold if number else None)


@contextlib.asynccontextmanager
async def scaled(
    path: Path, info: TargetInfo, scaling: ScalingOptions = FAST, running: Sequence[str] = (), grace: float = 0.2
) -> AsyncIterator[tuple[Router, Elastic]]:
    elastic = Elastic(path, info, scaling.most)
    options = RouterOptions(
        "tiny", max_wait=None, failover=0.1, grace=grace, scaling=scaling, scheduler=SchedulerOptions(max_sequences=2)
    )
    draft_client = InlineDraftClient(SpeculatorPool(), info.spec.vocab_size)
    router = Router(options, info, draft_client, [elastic.client(i) for i in range(scaling.most)])
    router.start(running)
    try:
        yield router, elastic
    finally:
        await router.close()
        for number in range(scaling.most):
            elastic.end(number)


async def until(condition: Callable[[], bool], within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        await asyncio.sleep(0.01)


async def answer(router: Router, job: Request) -> list[int]:
    return [token async for event in router.stream(job) for token in event.token_ids]


def n_up(router: Router) -> int:
    return sum(lane.is_up for lane in router.lanes)


@pytest.fixture
def work(make_job: MakeJob, offline: Offline) -> Work:
    """Jobs of all methods, and their texts."""

    def make(n: int, max_tokens: int) -> tuple[list[Request], list[list[int]]]:
        sampling: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.8})
        more = {"stop_ids": (), "max_tokens": max_tokens}
        jobs = [make_job(i, METHODS[i % 4], **sampling[i % 2], **more) for i in range(n)]
        return jobs, [offline(job).token_ids for job in jobs]

    return make


@contextlib.asynccontextmanager
async def two_decoding(
    path: Path, info: TargetInfo, jobs: Sequence[Request], second: int = 1, grace: float = 0.2
) -> AsyncIterator[tuple[Router, Elastic, list[asyncio.Task[list[int]]]]]:
    """Pipelines 0 and ``second`` are up, and the latter decodes two of the jobs; yields all answers too."""
    async with scaled(path, info, running=[f"lane-{second}"], grace=grace) as (router, elastic):
        await until(lambda: n_up(router) == 2)
        answers = [asyncio.create_task(answer(router, job)) for job in jobs]
        await until(lambda: router.lanes[second].scheduler.n_running == 2)
        yield router, elastic, answers


async def test_pipelines_follow_the_load_and_no_text_differs(
    tiny_checkpoint: Path, info: TargetInfo, work: Work
) -> None:
    jobs, texts = work(12, 60)
    async with scaled(tiny_checkpoint, info) as (router, elastic):
        assert [lane.is_wanted for lane in router.lanes] == [True, False, False]
        answers = [asyncio.create_task(answer(router, job)) for job in jobs]
        await until(lambda: n_up(router) == 3)
        assert elastic.n_held == 2
        assert 'spectra:pipelines_wanted{model_name="tiny"} 3.0' in router.metrics_text()
        assert await asyncio.gather(*answers) == texts
        await until(lambda: n_up(router) == 1 and not elastic.n_held)
        assert await answer(router, jobs[0]) == texts[0]
        state = await router.state()
        assert (state["lanes"], state["lanes_up"], state["pipelines_lost"], state["sessions"]) == (1, 1, 0, 0)
        assert state["free_blocks"] == state["blocks"]


async def test_what_runs_on_a_pipeline_that_is_given_up_goes_on_elsewhere(
    tiny_checkpoint: Path, info: TargetInfo, work: Work
) -> None:
    jobs, texts = work(4, 150)
    async with two_decoding(tiny_checkpoint, info, jobs, second=2) as (router, elastic, answers):
        await until(lambda: all(router.lanes[i].scheduler.n_running == 2 for i in (0, 2)))
        router.scaler.bound(1, 1)
        await until(lambda: not elastic.n_held)
        assert not any(task.done() for task in answers)
        assert not router.lanes[2].sequences
        assert await asyncio.gather(*answers) == texts
        text = router.metrics_text()
        assert 'spectra:sequences_moved_total{model_name="tiny"} 2.0' in text
        assert 'spectra:pipelines_lost_total{model_name="tiny"} 0.0' in text


async def test_a_pipeline_that_is_wanted_again_while_it_is_given_up_stays(
    tiny_checkpoint: Path, info: TargetInfo, work: Work
) -> None:
    jobs, texts = work(4, 90)
    async with two_decoding(tiny_checkpoint, info, jobs, grace=60.0) as (router, elastic, answers):
        before = elastic.pipelines[1]
        router.scaler.bound(1, 1)
        assert not router.lanes[1].takes
        router.scaler.bound(2, 2)
        assert await asyncio.gather(*answers) == texts
        assert elastic.pipelines[1] is before
        assert router.lanes[1].takes


async def test_a_pipeline_that_dies_while_others_come_changes_no_text(
    tiny_checkpoint: Path, info: TargetInfo, work: Work
) -> None:
    jobs, texts = work(12, 80)
    async with scaled(tiny_checkpoint, info) as (router, elastic):
        answers = [asyncio.create_task(answer(router, job)) for job in jobs]
        await until(lambda: any(lane.is_up for lane in router.lanes[1:]))
        lost = next(i for i in (1, 2) if router.lanes[i].is_up)
        await until(lambda: router.lanes[lost].scheduler.n_running > 0)
        elastic.end(lost)  # the hold makes another one
        assert await asyncio.gather(*answers) == texts
        assert router.lanes[lost].n_lost == 1


async def test_a_pipeline_that_does_not_come_is_told_of_and_no_request_waits_for_it(
    tiny_checkpoint: Path, info: TargetInfo, make_job: MakeJob, offline: Offline, caplog: pytest.LogCaptureFixture
) -> None:
    job = make_job(1, "pld")
    text = offline(job).token_ids
    async with scaled(tiny_checkpoint, info) as (router, elastic):
        elastic.has_room = False
        router.scaler.bound(2, 3)
        with caplog.at_level(logging.ERROR):
            await until(lambda: router.scaler.n_overdue == 1)
            assert await answer(router, job) == text
        assert "lane-1 has been wanted for" in caplog.text
        assert 'spectra:pipelines_overdue{model_name="tiny"} 1.0' in router.metrics_text()
        assert 'spectra:pipelines_pending{model_name="tiny"} 1.0' in router.metrics_text()
        elastic.has_room = True
        await until(lambda: n_up(router) == 2 and not router.scaler.n_overdue)


async def test_the_only_pipeline_that_is_up_is_not_given_up(
    tiny_checkpoint: Path, info: TargetInfo, work: Work
) -> None:
    jobs, texts = work(4, 80)
    async with two_decoding(tiny_checkpoint, info, jobs) as (router, elastic, answers):
        elastic.end(0)
        await until(lambda: not router.lanes[0].is_up)
        router.scaler.bound(1, 1)
        assert await asyncio.gather(*answers) == texts
        assert elastic.n_held == 1
        elastic.make(0)
        await until(lambda: not elastic.n_held)
        assert await answer(router, jobs[0]) == texts[0]
