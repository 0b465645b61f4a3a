"""A pipeline whose connections stand is not up until it answers; and it is lost when its beginning is."""

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
from deployments.submission.protocol import Attachment
from engine.errors import TargetLostError
from engine.step import Step


@asynccontextmanager
async def silent_middle(served: Any) -> AsyncIterator[Pipeline]:
    """A pipeline of three stages whose middle one listens, as the kernel does for a stopped process, and no more."""
    await served.router.close()
    with tempfile.TemporaryDirectory(prefix="si-") as folder, socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{folder}/s")
        silent.listen(8)
        workers = served.stages.workers
        workers[0].start(f"unix:{folder}/s")
        pipeline = await Pipeline.connect(served.stages.endpoints)
        try:
            yield pipeline
        finally:
            pipeline.close()
            workers[0].start(workers[1].address)


async def test_a_pipeline_is_lost_when_the_way_of_its_steps_is_though_the_last_stage_knows_of_nothing(
    serving: Any,
) -> None:
    async with serving(3) as served, silent_middle(served) as pipeline:
        pipeline.send(Step(1, []))
        receiving = asyncio.create_task(pipeline.receive())
        served.stages.workers[0].start(served.stages.workers[1].address)  # the middle one was replaced
        async with asyncio.timeout(240):
            with pytest.raises(TargetLostError, match="first stage is lost"):
                await receiving


async def test_a_stage_that_listens_and_says_nothing_does_not_hold_up_measuring(serving: Any) -> None:
    async with serving(3) as served, silent_middle(served) as pipeline:
        with pytest.raises(TargetLostError):
            await measure_pipeline(pipeline, served.info, 0.2)
        reasons: list[str] = []

        async def report_hang(reason: str) -> None:
            reasons.append(reason)

        async def connect() -> Pipeline:
            return await Pipeline.connect(served.stages.endpoints)

        async with asyncio.timeout(240):
            assert await step_costs(connect, "", served.info, 0.01, report_hang) is None
        assert len(reasons) == 3
        assert all("was not answered" in reason for reason in reasons)


async def test_an_unanswered_question_names_its_limit(serving: Any) -> None:
    async with serving(3) as served, silent_middle(served) as pipeline:
        with pytest.raises(TargetHungError, match=r"in 0\.05 s"):
            await pipeline.ask(Step(7, []), 0.05)


async def test_a_lane_is_up_once_its_pipeline_answers_and_reports_one_that_does_not(serving: Any) -> None:
    async with serving(3) as served, silent_middle(served):
        options = replace(served.router.options, step_deadline=0.05)
        router = type(served.router)(options, served.info, served.router._draft_client, [served.target(0)])
        router.start()
        try:
            async with asyncio.timeout(240):
                while not served.hangs:
                    assert not router.is_ready
                    await asyncio.sleep(0.01)
                served.stages.workers[0].start(served.stages.workers[1].address)
                while not router.is_ready:
                    await asyncio.sleep(0.01)
        finally:
            await router.close()


async def test_no_secret_is_printed(serving: Any) -> None:
    async with serving() as served:
        assert repr(served.stages.endpoints.secret)[2:-1] not in repr(served.stages.endpoints)
    assert "hidden" not in repr(Attachment("unix:/x", b"hidden"))
