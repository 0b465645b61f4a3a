"""Readers of kept answers come and go, and have every token once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from deployments.answers import reading as reading_module
from deployments.submission.protocol import AnswerReference
from deployments.submission.server import SubmissionServer
from engine.errors import AnswerCancelledError, AnswerNotFoundError, ModelChangedError, OverloadedError, TargetLostError
from engine.events import StepEvent
from engine.request import Request
from tests.deployments.conftest import Serving, job_of
from tests.support.answer_keeping import TENANT, keeping
from tests.support.submission import EndlessRequests, check_figures, submitting, tokens
from tests.support.waiting import wait_until_async


async def test_a_reader_that_comes_back_at_any_token_has_the_rest_and_the_end(serving: Serving) -> None:
    job = job_of(5, "pld+spectra-core", max_tokens=24, logprobs=2, prompt_logprobs=1, stop_ids=())
    async with serving() as served, keeping(served.router.stream) as kept:
        await kept.create("a", job)
        whole = await kept.follow("a")
        assert tokens(whole) == served.offline(job).token_ids
        assert whole[0].prompt_logprobs is not None
        assert len(whole) < 24, "no event has several tokens"
        logprobs = [one for event in whole for one in event.logprobs or ()]
        for after in range(1, 26):
            rest = await kept.follow("a", after)
            assert tokens(rest) == tokens(whole)[after:]
            assert [one for event in rest for one in event.logprobs or ()] == logprobs[after:]
            assert rest[0].prompt_logprobs is None
            assert (rest[-1].finish_reason, rest[-1].stats) == ("length", whole[-1].stats)
            assert all(event.token_ids for event in rest[:-1])
        found = await kept.client.read("a", TENANT, with_events=True)
        assert found is not None
        assert (found.status, found.decode_events(0), found.answer.requests) == ("completed", whole, [job])


async def test_an_answer_without_readers_continues_when_its_router_and_its_keepers_server_are_lost(
    serving: Serving,
) -> None:
    job = job_of(3, "pld", max_tokens=60, stop_ids=())
    async with serving() as served, submitting(served.router.stream) as pair, keeping(pair.channel.stream) as kept:
        await kept.create("a", job)
        async with aclosing(kept.client.follow(AnswerReference("a", TENANT, 0, 0))) as events:
            first = [await anext(events), await anext(events)]
            pair.server.disconnect()
            pair.server = SubmissionServer(served.router.stream)
            kept.server.disconnect()
            kept.server = SubmissionServer(kept.keeper.follow)
            rest = [event async for event in events]
        assert tokens(first + rest) == served.offline(job).token_ids
        await kept.wait_for("a", "completed")
        check_figures(await kept.follow("a"), len(job.prompt))


async def test_choices_end_on_their_own_and_finish_ends_one(serving: Serving) -> None:
    short, long = job_of(1, max_tokens=6, stop_ids=()), job_of(2, max_tokens=900, stop_ids=())
    async with serving() as served, keeping(served.router.stream) as kept:
        await kept.create("a", short, long)
        assert tokens(await kept.follow("a")) == served.offline(short).token_ids
        assert await kept.status("a") == "in_progress"
        await kept.client.finish("a", TENANT, 1)
        await kept.wait_for("a", "completed")
        assert (await kept.follow("a", choice=1))[-1].finish_reason == "stop"
        await served.settled()
        with pytest.raises(AnswerNotFoundError, match="no answer 'a'"):
            await kept.follow("a", choice=2)


async def test_cancel_and_delete_stop_the_request_and_end_its_readers() -> None:
    running = EndlessRequests()
    async with keeping(running.run) as kept:
        for name, end, error in (("a", "cancel", AnswerCancelledError), ("b", "delete", AnswerNotFoundError)):
            await kept.create(name)
            reading = asyncio.create_task(kept.follow(name))
            await kept.wait_for(name, "in_progress")
            assert await getattr(kept.client, end)(name, "stranger") in (None, False)
            assert await getattr(kept.client, end)(name, TENANT)
            with pytest.raises(error):
                await reading
            await wait_until_async(lambda: not running.alive)
        cancelled = await kept.client.cancel("a", TENANT)
        assert cancelled is not None
        assert cancelled.status == "cancelled"
        assert await kept.status("b") is None
        assert not await kept.client.delete("b", TENANT)
        with pytest.raises(AnswerNotFoundError):
            await kept.follow("a", tenant="stranger")
        assert await kept.status("a", tenant="stranger") is None


async def test_a_slow_reader_holds_a_page_and_a_fast_one_the_whole_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def count(request: Request) -> AsyncGenerator[StepEvent, None]:
        for token in range(500):
            yield StepEvent(token_ids=[token])
        yield StepEvent(token_ids=[500], finish_reason="stop")

    monkeypatch.setattr(reading_module, "PAGE_BYTES", 2000)
    async with keeping(count) as kept:
        await kept.create("a")
        await kept.wait_for("a", "completed")
        async with aclosing(kept.client.follow(AnswerReference("a", TENANT, 0, 0))) as slow:
            assert (await anext(slow)).token_ids == [0]
            assert tokens(await kept.follow("a")) == [*range(501)]
            assert kept.server.n_running == 0, "the slow reader's page is all that was sent"
            assert tokens([event async for event in slow]) == [*range(1, 501)]


@pytest.mark.parametrize("error", [OverloadedError("full", 0.01), TargetLostError("no router")])
async def test_a_background_answer_waits_for_its_turn_and_a_stream_is_refused(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = 2

    async def refuse(request: Request) -> AsyncGenerator[StepEvent, None]:
        nonlocal refusals
        assert not request.resumed, "a full queue must refuse a request that was never admitted"
        if refusals:
            refusals -= 1
            raise error
        yield StepEvent(token_ids=[1], finish_reason="stop")

    monkeypatch.setattr("deployments.answers.runs.RETRY_S", 0.01)
    async with keeping(refuse) as kept:
        await kept.create("background", is_background=True)
        assert tokens(await kept.follow("background")) == [1]
        refusals = 1
        await kept.create("stream")
        with pytest.raises(type(error), match=str(error)):
            await kept.follow("stream")
        assert await kept.status("stream") is None, "nothing of it is left"


async def test_an_error_ends_the_answer_by_name_and_no_other() -> None:
    async def fail(request: Request) -> AsyncGenerator[StepEvent, None]:
        yield StepEvent(token_ids=[1])
        if request.model == "old":
            raise ModelChangedError("another model is served")
        if request.model == "bug":
            raise ZeroDivisionError
        yield StepEvent(token_ids=[2], finish_reason="stop")

    async with keeping(fail) as kept:
        for model in ("old", "bug", "new"):
            await kept.create(model, Request([1], job_of(1).params, model=model), is_background=True)
        assert tokens(await kept.follow("new")) == [1, 2]
        with pytest.raises(ModelChangedError):
            await kept.follow("old", after=1)
        await kept.wait_for("bug", "failed")
        found = [await kept.client.read(name, TENANT) for name in ("old", "bug")]
        assert [one and one.failure and one.failure.kind for one in found] == ["ModelChangedError", "StepFailedError"]
