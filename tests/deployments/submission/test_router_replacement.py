"""A router reports whether it is ready, leaves, and is replaced: running requests continue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from deployments.submission import ingress_connection
from deployments.submission.protocol import Attachment
from deployments.submission.server import SubmissionServer
from engine.errors import TargetLostError
from engine.events import StepEvent
from engine.request import Request
from tests.deployments.conftest import METHODS, Serving, job_of
from tests.deployments.slow_stage import GATE, Gated
from tests.support.submission import REQUEST, EndlessRequests, count_prompt, submitting, tokens
from tests.support.waiting import LIMIT_S, wait_until_async


async def test_a_router_answers_on_the_channel_of_requests_whether_it_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = ""
    async with submitting(EndlessRequests().run, problem=lambda: problem) as pair:
        await pair.channel.check_ready()
        stream = pair.channel.stream(REQUEST)
        await anext(stream)
        problem = "no pipeline is up"
        with pytest.raises(TargetLostError, match="no pipeline is up"):
            await pair.channel.check_ready()
        await anext(stream)
        assert pair.attached == 1
        await stream.aclose()
        monkeypatch.setattr(ingress_connection.IngressConnection, "_flush", lambda self: None)  # it is stuck
        asking = asyncio.create_task(pair.channel.check_ready())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asking), 0.05)
        pair.server.disconnect()
        with pytest.raises(TargetLostError):
            await asking


async def test_a_router_that_leaves_finishes_running_requests_and_sends_new_ones_to_the_next() -> None:
    release = asyncio.Event()

    async def run_old(request: Request) -> AsyncGenerator[StepEvent, None]:
        yield StepEvent(token_ids=[1])
        await release.wait()
        yield StepEvent(token_ids=[2], finish_reason="stop")

    async with submitting(run_old) as pair:
        running = pair.channel.stream(REQUEST)
        assert (await anext(running)).token_ids == [1]
        old, pair.server = pair.server, SubmissionServer(count_prompt)
        leaving = asyncio.create_task(old.drain(LIMIT_S, lambda: True))
        connection = pair.channel._connection
        assert connection is not None
        await wait_until_async(lambda: not connection.accepts_requests)
        with pytest.raises(TargetLostError, match="being replaced"):
            await old.attachment()
        await pair.channel.check_ready()
        assert tokens(await pair.answer(REQUEST)) == [3]
        assert (old.n_running, leaving.done()) == (1, False)
        release.set()
        assert (await anext(running)).token_ids == [2]
        await leaving
        assert pair.attached == 2
        await old.close()


async def test_the_next_router_takes_the_pipeline_over_and_continues_running_requests(serving: Serving) -> None:
    jobs = [job_of(n, METHODS[n % 4], temperature=0.8, max_tokens=100, stop_ids=()) for n in range(4)]
    async with serving(1, [Gated]) as served, submitting(served.router.stream) as pair:
        GATE.close()
        streams = [pair.channel.stream(job) for job in jobs]
        begun = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await wait_until_async(lambda: len(served.router._sessions) == 4)
        GATE.close(after=8)
        events = [[event] for event in await asyncio.gather(*begun)]
        first, old = served.router, pair.server
        served.router = served.another_router()
        pair.server = SubmissionServer(served.router.stream)
        first.hand_over()
        leaving = asyncio.create_task(old.drain(LIMIT_S, lambda: first.is_ready))
        GATE.close(after=8)
        events[0].append(await anext(streams[0]))  # still from the first router
        served.router.start()
        GATE.open()
        await leaving
        for job, first_events, stream in zip(jobs, events, streams, strict=True):
            assert tokens(first_events + [event async for event in stream]) == served.offline(job).token_ids
        assert not first.is_ready
        assert pair.attached == 2
        await served.settled()
        await asyncio.gather(first.close(), old.close())


async def test_requests_that_outlast_the_grace_move_to_the_next_router() -> None:
    async with submitting(EndlessRequests().run) as pair:
        stream = pair.channel.stream(REQUEST)
        await anext(stream)
        old, pair.server = pair.server, SubmissionServer(count_prompt)
        await old.drain(0.0, lambda: True)
        assert tokens([event async for event in stream])[-1] == len(REQUEST.prompt)
        await old.close()


async def test_without_a_router_a_request_waits_no_longer_than_its_patience() -> None:
    async def no_router() -> Attachment:
        raise TargetLostError("there is no router")

    async with submitting(EndlessRequests().run, patience=0.05) as pair:
        pair.attach = no_router  # type: ignore[method-assign]
        with pytest.raises(TargetLostError, match=r"no router came up within 0.05 s"):
            await pair.answer(REQUEST)
