"""Kept answers have bounds in number, bytes and time, and a tenant that exceeds them harms no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from deployments.answers.deadlines import MAX_ABANDONED
from engine.errors import AnswerCancelledError, OverloadedError, RequestError, StepFailedError
from engine.events import StepEvent
from engine.request import Request
from tests.deployments.conftest import Serving, job_of
from tests.support.answer_keeping import TENANT, Keeping, keeping
from tests.support.submission import REQUEST, EndlessRequests, count_prompt, tokens
from tests.support.waiting import wait_until_async


async def begin_reading(kept: Keeping, name: str) -> asyncio.Task[list[StepEvent]]:
    reading = asyncio.create_task(kept.follow(name))
    await wait_until_async(lambda: kept.keeper.kept.by_id[name].n_readers == 1)
    return reading


async def test_a_stream_without_readers_is_cancelled_and_a_background_answer_is_not() -> None:
    async with keeping(EndlessRequests().run, unread_seconds=60) as kept:
        for name in ("read", "unread", "left"):
            await kept.create(name)
        await kept.create("background", is_background=True)
        readings = [await begin_reading(kept, name) for name in ("read", "left")]
        kept.pass_time(59)
        readings[1].cancel()
        await wait_until_async(lambda: kept.keeper.kept.by_id["left"].n_readers == 0)
        kept.pass_time(2)
        states = [await kept.status(name) for name in ("read", "unread", "left", "background")]
        assert states == ["in_progress", "cancelled", "in_progress", "in_progress"]
        kept.pass_time(60)
        assert await kept.status("left") == "cancelled"
        assert kept.keeper.kept.n_abandoned == 2
        with pytest.raises(AnswerCancelledError, match="the answer had no reader for 60 s"):
            await kept.follow("left")
        readings[0].cancel()


async def test_an_answer_fails_when_it_takes_too_long_and_is_deleted_some_time_after_its_end() -> None:
    async with keeping(EndlessRequests().run, longest_seconds=100, keep_seconds=30) as kept:
        await kept.create("a", is_background=True)
        kept.pass_time(101)
        with pytest.raises(StepFailedError, match="longer than 100 s"):
            await kept.follow("a")
        kept.pass_time(28)
        assert await kept.status("a") == "failed"
        kept.pass_time(3)
        assert await kept.status("a") is None
        assert (kept.keeper.kept.n_bytes, kept.keeper.kept._by_tenant) == (0, {})


async def test_a_new_answer_replaces_finished_streams_then_abandoned_ones_and_nothing_else() -> None:
    async def run(request: Request) -> AsyncGenerator[StepEvent, None]:
        yield StepEvent(token_ids=[1], finish_reason="stop" if request.model else None)
        await asyncio.Event().wait()

    finished = Request([1], REQUEST.params, model="finished")
    async with keeping(run, per_tenant=4, unread_seconds=1e6) as kept:
        await kept.create("background", finished, is_background=True)
        await kept.create("read")
        await kept.create("abandoned")
        reading = await begin_reading(kept, "read")
        await kept.create("finished", finished)
        await kept.wait_for("finished", "completed")
        await kept.create("stranger", tenant="stranger")
        await kept.create("new")
        assert [*kept.keeper.kept.by_id] == ["background", "read", "abandoned", "stranger", "new"]
        with pytest.raises(OverloadedError, match="4 answers are kept already, of at most 4 per tenant"):
            await kept.create("too early")
        await kept.wait_for("new", "in_progress")
        kept.pass_time(10)
        await kept.create("last")
        assert [*kept.keeper.kept.by_id] == ["background", "read", "stranger", "new", "last"]
        reading.cancel()


async def test_a_stream_without_an_event_has_no_client_that_could_come_back() -> None:
    async def run(request: Request) -> AsyncGenerator[StepEvent, None]:
        await asyncio.Event().wait()
        yield StepEvent(token_ids=[1])

    async with keeping(run, unread_seconds=1e6) as kept:
        await kept.create("a")
        kept.pass_time(6)
        with pytest.raises(AnswerCancelledError, match="the answer had no reader for 5 s"):
            await kept.follow("a")


async def test_nothing_is_dropped_for_an_answer_that_is_refused_nevertheless() -> None:
    async with keeping(count_prompt, bytes_per_tenant=60_000) as kept:
        for name in "ab":
            await kept.create(name)
            await kept.wait_for(name, "completed")
        await kept.create("background", Request([1] * 3000, REQUEST.params), is_background=True)
        with pytest.raises(OverloadedError, match="of at most 60000 per tenant"):
            await kept.create("c", Request([1] * 3000, REQUEST.params))
        assert [*kept.keeper.kept.by_id] == ["a", "b", "background"]


async def test_bytes_are_bounded_for_a_tenant_and_for_all() -> None:
    async with keeping(EndlessRequests(100).run, bytes_per_tenant=200_000, total_bytes=300_000) as kept:
        with pytest.raises(RequestError, match="at most 200000"):
            await kept.create("large", Request([1] * 20_000, REQUEST.params))
        for name in ("a", "b"):
            await kept.create(name, is_background=True, tenant=name)
        with pytest.raises(RequestError, match=r"cannot grow: .* at most (200000 per tenant|300000)"):
            await kept.follow("a", after=10**6, tenant="a")
        await kept.wait_for("b", "failed", tenant="b")
        assert 200_000 < kept.keeper.kept.n_bytes <= 300_000
        with pytest.raises(OverloadedError, match="of all tenants"):
            await kept.create("c", Request([1] * 12_000, REQUEST.params), tenant="c")
        for name in ("a", "b"):
            assert await kept.client.delete(name, name)
        assert kept.keeper.kept.n_bytes == 0


async def test_a_flood_of_abandoned_streams_leaves_others_unharmed(serving: Serving) -> None:
    flood = [job_of(number, max_tokens=400, stop_ids=()) for number in range(40)]
    mine = job_of(50, max_tokens=30, stop_ids=())
    async with serving() as served, keeping(served.router.stream, per_tenant=8, unread_seconds=1e6) as kept:
        await kept.create("mine", mine, tenant="other")
        for number, job in enumerate(flood):
            await kept.create(f"{number}", job)
            kept.clock.passed += 10  # those before it are abandoned
        assert sum(entry.tenant == TENANT for entry in kept.keeper.kept.by_id.values()) == 8
        assert kept.keeper.kept.n_abandoned == len(flood) - 8
        assert tokens(await kept.follow("mine", tenant="other")) == served.offline(mine).token_ids
        await served.check(job_of(60))
        kept.pass_time(1e6)
        await served.settled()


async def test_a_few_abandoned_streams_of_a_tenant_run_and_the_others_wait_for_a_reader(serving: Serving) -> None:
    jobs = [job_of(number, "pld", max_tokens=80, stop_ids=()) for number in range(12)]
    running: set[int] = set()
    gate = asyncio.Event()

    async with serving() as served:

        async def run(request: Request) -> AsyncGenerator[StepEvent, None]:
            running.add(request.params.seed)
            try:
                async with aclosing(served.router.stream(request)) as events:
                    async for event in events:
                        yield event
                        if len(request.emitted) == 0:
                            await gate.wait()
            finally:
                running.discard(request.params.seed)

        async with keeping(run, unread_seconds=1e6) as kept:
            for number, job in enumerate(jobs):
                await kept.create(f"{number}", job)
                await kept.wait_for(f"{number}", "in_progress")
            reading = await begin_reading(kept, "11")
            kept.pass_time(6)
            await wait_until_async(lambda: len(running) == MAX_ABANDONED + 1, lambda: running)
            assert [tokens(await kept.follow(f"{n}")) for n in (9, 10)] == [
                served.offline(jobs[n]).token_ids for n in (9, 10)
            ], "a reader that comes back has the same text"
            gate.set()
            await wait_until_async(lambda: not running, lambda: running)
            kept.pass_time(1)
            for number, job in enumerate(jobs):
                assert tokens(await kept.follow(f"{number}")) == served.offline(job).token_ids
            reading.cancel()


async def test_creating_an_answer_twice_starts_it_once() -> None:
    async with keeping(count_prompt) as kept:
        await kept.create("a")
        await kept.wait_for("a", "completed")
        await kept.create("a")
        assert tokens(await kept.follow("a")) == [3]
        with pytest.raises(RequestError, match="taken"):
            await kept.create("a", tenant="stranger")
