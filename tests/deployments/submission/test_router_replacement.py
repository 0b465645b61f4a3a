"""A router is asked whether it is ready, leaves, and is replaced: what runs goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from deployments.router.draft_client import InlineDraftClient
from deployments.router.router import Router
from deployments.submission import ingress_connection
from deployments.submission.server import SubmissionServer
from engine.errors import TargetLostError
from engine.events import StepEvent
from engine.loop import Completion
from engine.request import Request
from speculators.pool import SpeculatorPool
from tests.support.submission import METHODS, REQUEST, Endless, no_router, submitting, tokens, until

MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]


async def test_readiness_is_asked_on_the_way_of_requests() -> None:
    problem = ""
    async with submitting(Endless().run, problem=lambda: problem) as pair:
        await pair.channel.check_ready()
        stream = pair.channel.stream(REQUEST)
        await anext(stream)
        problem = "no pipeline is up"
        with pytest.raises(TargetLostError, match="no pipeline is up"):
            await pair.channel.check_ready()
        await anext(stream)
        assert pair.attached == 1
        await stream.aclose()


async def test_a_router_that_is_lost_or_stuck_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async with submitting(Endless().run) as pair:
        await pair.channel.check_ready()
        monkeypatch.setattr(
            ingress_connection.IngressConnection, "_flush", lambda self: None
        )  # nothing leaves any more
        asking = asyncio.create_task(pair.channel.check_ready())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await asyncio.shield(asking)
        pair.server.cut()
        with pytest.raises(TargetLostError):
            await asking


async def test_a_router_that_leaves_ends_what_runs_and_sends_what_is_new_to_the_next() -> None:
    release = asyncio.Event()

    async def at_the_old(request: Request) -> AsyncGenerator[StepEvent, None]:
        yield StepEvent(token_ids=[1])
        await release.wait()
        yield StepEvent(token_ids=[2], finish_reason="stop")

    async def at_the_new(request: Request) -> AsyncGenerator[StepEvent, None]:
        yield StepEvent(token_ids=[3], finish_reason="stop")

    async with submitting(at_the_old) as pair:
        running = pair.channel.stream(REQUEST)
        assert (await anext(running)).token_ids == [1]
        old, pair.server = pair.server, SubmissionServer(at_the_new)
        leaving = asyncio.create_task(old.drain(60.0, lambda: True))
        await until(lambda: pair.channel._connection is not None and not pair.channel._connection.takes_requests)
        with pytest.raises(TargetLostError, match="being replaced"):
            await old.attachment()
        await pair.channel.check_ready()
        assert tokens(await pair.answer(REQUEST)) == [3]
        assert (old.n_running, leaving.done()) == (1, False)
        release.set()
        assert (await anext(running)).token_ids == [2]
        await asyncio.wait_for(leaving, 120)
        assert pair.attached == 2
        await old.close()


async def test_the_next_router_takes_the_pipeline_over_and_goes_on_with_what_runs(
    serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    jobs = [make_job(n, METHODS[n % 4], temperature=0.8, max_tokens=300, stop_ids=()) for n in range(4)]
    async with serving() as served, submitting(served.router.stream) as pair:
        streams = [pair.channel.stream(job) for job in jobs]
        had = [tokens([await anext(stream)]) for stream in streams]
        first, old = served.router, pair.server
        draft_client = InlineDraftClient(SpeculatorPool(), served.info.spec.vocab_size)
        served.router = Router(first.options, served.info, draft_client, [served.target(0)])
        pair.server = SubmissionServer(served.router.stream)
        first.leave()
        leaving = asyncio.create_task(old.drain(60.0, lambda: first.is_ready))
        for n, stream in enumerate(streams):
            had[n] += tokens([await anext(stream)])  # still at the first router
        served.router.start()
        await asyncio.wait_for(leaving, 30)
        for job, before, stream in zip(jobs, had, streams, strict=True):
            assert before + tokens([event async for event in stream]) == offline(job).token_ids
        assert not first.is_ready
        assert pair.attached == 2
        await served.settled()
        await asyncio.gather(first.close(), old.close())


async def test_requests_that_outlast_the_grace_move_to_the_next_router() -> None:
    async def finish(request: Request) -> AsyncGenerator[StepEvent, None]:
        yield StepEvent(token_ids=[9], finish_reason="stop")

    async with submitting(Endless().run) as pair:
        stream = pair.channel.stream(REQUEST)
        await anext(stream)
        old, pair.server = pair.server, SubmissionServer(finish)
        await old.drain(0.1, lambda: True)
        assert tokens([event async for event in stream])[-1] == 9
        await old.close()


async def test_without_a_router_a_request_waits_as_long_as_it_was_told() -> None:
    async with submitting(Endless().run, patience=0.2) as pair:
        pair.attach = no_router  # type: ignore[method-assign]
        with pytest.raises(TargetLostError, match=r"no router came up within 0.2 s"):
            await pair.answer(REQUEST)
