"""Kept answers in a real Redis survive their keeper, and a keeper survives its Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest

from deployments.answers import log_writer, redis_log
from deployments.answers.redis_log import RedisAnswerLog
from deployments.submission.protocol import AnswerReference
from engine.errors import TargetLostError
from engine.events import StepEvent
from engine.request import Request
from tests.deployments.conftest import Serving, job_of
from tests.support.answer_keeping import TENANT, Keeping, keeping
from tests.support.redis_server import RedisServer
from tests.support.submission import EndlessRequests, check_figures, tokens
from tests.support.waiting import LIMIT_S, wait_until_async

pytestmark = pytest.mark.cluster


def log_of(server: RedisServer, name: str = "test", instance: str = "one") -> RedisAnswerLog:
    return RedisAnswerLog(server.url, name, instance, 3600.0)


async def read_some(kept: Keeping, name: str, n: int) -> list[StepEvent]:
    async with aclosing(kept.client.follow(AnswerReference(name, TENANT, 0, 0))) as events:
        return [await anext(events) for _ in range(n)]


async def test_the_next_keeper_continues_the_answers_of_a_killed_one_with_identical_text(serving: Serving) -> None:
    jobs = [job_of(n, "pld+spectra-core", max_tokens=300, stop_ids=(), temperature=n / 2) for n in range(2)]
    deleted = job_of(4, max_tokens=4)
    with RedisServer() as server:
        async with serving() as served, keeping(served.router.stream, log_of(server)) as kept:
            await kept.create("deleted", deleted)
            await kept.create("finished", deleted)
            await kept.follow("deleted")
            finished = await kept.follow("finished")
            for name, job in zip("ab", jobs, strict=True):
                await kept.create(name, job)
            before = await read_some(kept, "a", 5)
            async with aclosing(kept.client.follow(AnswerReference("b", TENANT, 0, 0))) as events:
                begun = [await anext(events)]
                await kept.client.delete("deleted", TENANT)
                await kept.kill()
                assert all(entry.end is None for entry in map(kept.keeper.kept.by_id.__getitem__, "ab"))
                await kept.start(log_of(server))
                begun += [event async for event in events]
            assert tokens(begun) == served.offline(jobs[1]).token_ids
            rest = await kept.follow("a", len(tokens(before)))
            assert tokens(before + rest) == served.offline(jobs[0]).token_ids
            for name, job in zip("ab", jobs, strict=True):
                check_figures(await kept.follow(name), len(job.prompt))
            assert await kept.follow("finished") == finished
            assert await kept.status("deleted") is None
            ttl = {name: server.client().pttl(name) for name in server.client().keys("*")}
            assert len(ttl) == 6
            assert all(life > 0 for life in ttl.values()), ttl


async def test_no_reader_has_a_token_that_the_next_keeper_would_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every keeper draws other tokens, as with a sampler that is not deterministic."""
    keepers = 0

    async def draw(request: Request) -> AsyncGenerator[StepEvent, None]:
        for _ in range(len(request.emitted), 400):
            yield StepEvent(token_ids=[keepers])
            await asyncio.sleep(0.001)
        yield StepEvent(token_ids=[keepers], finish_reason="length")

    monkeypatch.setattr(log_writer, "WAIT_S", LIMIT_S)
    monkeypatch.setattr(redis_log, "OPTIONS", replace(redis_log.OPTIONS, read_seconds=LIMIT_S))
    with RedisServer() as server:
        async with keeping(draw, log_of(server)) as kept:
            await kept.create("a")
            reading = asyncio.create_task(kept.follow("a"))
            choice = kept.keeper.kept.by_id["a"].choices[0]
            await wait_until_async(lambda: choice.n_readable)
            server.client().client_pause(round(LIMIT_S * 1000), all=False)
            await wait_until_async(lambda: len(choice.events) - choice.n_readable > 50)
            await kept.kill()
            keepers = 1
            server.client().client_unpause()
            await kept.start(log_of(server))
            seen = tokens(await reading)
            assert seen == tokens(await kept.follow("a"))
            assert sorted(seen) == seen
            assert (len(seen), seen[-1]) == (401, 1)


async def test_answers_continue_while_redis_is_unreachable_and_are_written_once_it_is_back() -> None:
    with RedisServer() as server:
        async with keeping(EndlessRequests().run, log_of(server)) as kept:
            await kept.create("a", is_background=True)
            await read_some(kept, "a", 3)
            server.kill()
            n_before = len(kept.keeper.kept.by_id["a"].choices[0].events)
            await read_some(kept, "a", n_before + 50)
            with pytest.raises(TargetLostError, match="the store of kept answers is unreachable"):
                await kept.create("b")
            server.start()  # empty
            await wait_until_async(lambda: not kept.keeper._writer.is_unreachable)
            await kept.create("c", is_background=True)
            await read_some(kept, "a", n_before + 60)
            await kept.kill()
            await kept.start(log_of(server))
            assert {*kept.keeper.kept.by_id} == {"a", "c"}
            assert kept.keeper.kept.by_id["a"].choices[0].n_written >= n_before + 60, (
                "what Redis has lost is there again"
            )


async def test_answers_that_are_not_read_yet_are_waited_for() -> None:
    with RedisServer() as server:
        async with keeping(EndlessRequests().run, log_of(server)) as kept:
            await kept.create("a", is_background=True)
            await read_some(kept, "a", 3)
            await kept.kill()
            server.client().client_pause(round(LIMIT_S * 1000), all=False)
            await kept.start(log_of(server))
            assert not kept.keeper._writer.is_loaded
            status = asyncio.create_task(kept.status("a"))
            server.client().client_unpause()
            assert await status == "in_progress"


async def test_one_keeper_at_a_time_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_log, "LEASE_S", 0.5)
    with RedisServer() as server:
        async with keeping(EndlessRequests().run, log_of(server)) as kept, keeping(EndlessRequests().run) as other:
            await kept.create("a", is_background=True)
            first = kept.keeper
            second = await other.start(log_of(server, instance="two"))  # another cluster, as during an upgrade
            await other.create("b", is_background=True)
            assert [*second.kept.by_id] == ["b"]
            await kept.kill()
            await wait_until_async(lambda: len(second.kept.by_id) == 2, "the lease does not expire")
            await wait_until_async(lambda: second.kept.by_id["b"].is_recorded, "what was in memory is not written")
            await other.kill()
            first = await kept.start(log_of(server))
            await wait_until_async(lambda: len(first.kept.by_id) == 2, "the lease does not expire")
            assert [*(await other.start(log_of(server, "another", "two"))).kept.by_id] == []
            assert not first.is_lost
            await other.start(log_of(server, instance="one"))  # of the same application: at once
            assert {*other.keeper.kept.by_id} == {"a", "b"}
            await wait_until_async(lambda: first.is_lost)
            with pytest.raises(TargetLostError):
                await kept.server.attachment()
            await other.kill()
            third = await other.start(log_of(server, instance="two"))
            await wait_until_async(lambda: len(third.kept.by_id) == 2, "the lease does not expire")


async def test_a_user_who_may_not_write_keeps_answers_in_memory() -> None:
    with RedisServer() as server:
        rule = ["on", "nopass", "~spectra:*", "-@all", "+eval", "+get"]
        server.client().execute_command("ACL", "SETUSER", "reader", *rule)
        url = server.url.replace("//", "//reader:any@")
        async with keeping(EndlessRequests().run, RedisAnswerLog(url, "test", "one", 3600.0)) as kept:
            for name in "abc":
                await kept.create(name, is_background=True)
                assert len(await read_some(kept, name, 20)) == 20
                await kept.client.delete(name, TENANT)
            assert not kept.keeper._writer._dirty, "deleted answers stay in memory"
        assert server.client().keys("*") == []


async def test_a_keeper_that_stops_in_order_leaves_its_answers_to_the_next() -> None:
    with RedisServer() as server:
        async with keeping(EndlessRequests().run, log_of(server)) as kept:
            await kept.create("a", is_background=True)
            await read_some(kept, "a", 3)
            await kept.server.drain(0.0, lambda: True)
            await kept.keeper.close()
            n = len(kept.keeper.kept.by_id["a"].choices[0].events)
            status = asyncio.create_task(kept.status("a"))
            with pytest.raises(TargetLostError):
                await kept.call("call", "read", "a", TENANT)
            await kept.start(log_of(server, instance="two"))
            assert kept.keeper.kept.by_id["a"].choices[0].n_written >= n
            assert await status == "in_progress"
