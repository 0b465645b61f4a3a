"""A connected pipeline is up once it answers, and lost when its first stage is."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from deployments.pipeline.connection import Pipeline, TargetHungError, measure_pipeline, step_costs
from engine.errors import TargetLostError
from engine.step import Step
from tests.support.waiting import LIMIT_S, wait_until_async


@asynccontextmanager
async def silent_middle(served: Any) -> AsyncIterator[tuple[Pipeline, socket.socket]]:
    """A pipeline of three stages and the socket of the middle one, which only listens, like a stopped process."""
    await served.router.close()
    with tempfile.TemporaryDirectory(prefix="si-") as folder, socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{folder}/s")
        silent.listen(8)
        workers = served.stages.workers
        workers[0].start(f"unix:{folder}/s")
        pipeline = await Pipeline.connect(served.stages.endpoints)
        try:
            yield pipeline, silent
        finally:
            pipeline.close()
            workers[0].start(workers[1].address)


async def test_a_pipeline_is_lost_with_its_first_connection_though_the_last_stage_stays_up(serving: Any) -> None:
    async with serving(3) as served, silent_middle(served) as (pipeline, _):
        pipeline.send(Step(1, []))
        receiving = asyncio.create_task(pipeline.receive())
        served.stages.workers[0].start(served.stages.workers[1].address)  # the middle one was replaced
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(TargetLostError, match="first stage is lost"):
                await receiving


async def test_a_stage_that_listens_and_never_answers_does_not_block_the_measurement(serving: Any) -> None:
    async with serving(3) as served, silent_middle(served) as (pipeline, _):
        with pytest.raises(TargetHungError, match=r"in 0\.05 s"):
            await pipeline.ask(Step(7, []), 0.05)
        with pytest.raises(TargetLostError):
            await measure_pipeline(pipeline, served.info, 0.05)
        reasons: list[str] = []

        async def report_hang(reason: str) -> None:
            reasons.append(reason)

        async def connect() -> Pipeline:
            return await Pipeline.connect(served.stages.endpoints)

        async with asyncio.timeout(LIMIT_S):
            assert await step_costs(connect, "", served.info, 0.01, report_hang) is None
        assert len(reasons) == 3
        assert all("was not answered" in reason for reason in reasons)


async def test_a_lane_is_up_once_its_pipeline_answers_and_reports_one_that_does_not(serving: Any) -> None:
    async with serving(3) as served, silent_middle(served) as (_, silent):
        options = replace(served.router.options, step_deadline=0.25)
        router = type(served.router)(options, served.info, served.router._draft_client, [served.target(0)])
        router.start()
        try:
            await wait_until_async(lambda: bool(served.hangs))
            assert not router.is_ready
            silent.close()
            served.stages.workers[0].start(served.stages.workers[1].address)
            await wait_until_async(lambda: router.is_ready)
        finally:
            await router.close()
