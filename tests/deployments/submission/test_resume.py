"""A router that is lost in the middle of its requests: the next one continues, and text and figures do not show it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from deployments.submission.server import RunRequest, SubmissionServer
from engine.errors import TargetLostError
from engine.events import StepEvent
from engine.request import Request
from tests.deployments.conftest import Serving, job_of
from tests.support.submission import REQUEST, Submitting, check_figures, submitting, tokens

SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.8, "top_p": 0.95},
    "penalties": {"temperature": 1.0, "repetition_penalty": 1.2, "presence_penalty": 0.3, "min_tokens": 8},
}


class Dying:
    """Runs requests on a router, and cuts its ingress off ``deaths`` times after ``after`` events.

    With 0 loop ``turns`` until the cut the last event is lost, with a few it arrives.
    """

    def __init__(self, run: RunRequest, after: int, turns: int, deaths: int) -> None:
        self._run = run
        self._after = after
        self._turns = turns
        self.left = deaths
        self._pair: Submitting | None = None
        self._dead: list[SubmissionServer] = []

    async def answer(self, job: Request) -> list[StepEvent]:
        async with submitting(self.run) as self._pair:
            events = await self._pair.answer(job)
            for server in self._dead:
                await server.close()
        assert self.left == 0, f"event {self._after} was never reached"
        return events

    async def run(self, request: Request) -> AsyncGenerator[StepEvent, None]:
        async with aclosing(self._run(request)) as events:
            n = 0
            async for event in events:
                if n == self._after:
                    for _ in range(self._turns):
                        await asyncio.sleep(0)
                    self._die()
                yield event
                n += 1

    def _die(self) -> None:
        if self.left and self._pair is not None:
            self.left -= 1
            self._dead.append(self._pair.server)
            self._pair.server = SubmissionServer(self.run)
            self._dead[-1].disconnect()


@pytest.mark.parametrize(
    ("method", "sampling", "turns"),
    [
        ("autoregressive", "greedy", 0),
        ("pld", "seeded", 4),
        ("spectra-core", "penalties", 0),
        ("pld+spectra-core", "greedy", 4),
        ("pld+spectra-core", "penalties", 4),
    ],
)
async def test_a_request_cut_off_at_any_event_continues_with_identical_output(
    method: str, sampling: str, turns: int, serving: Serving
) -> None:
    job = job_of(5, method, max_tokens=12, **SAMPLING[sampling])
    async with serving() as served:
        [whole] = await served.check(job)
        for after in range(len(whole.events)):
            events = await Dying(served.router.stream, after, turns, deaths=1).answer(job)
            assert tokens(events) == served.offline(job).token_ids, after
            assert events[-1].finish_reason == served.offline(job).finish_reason
            assert check_figures(events, len(job.prompt)).preemptions >= 1


async def test_logprobs_of_tokens_that_were_emitted_before_are_not_repeated(serving: Serving) -> None:
    job = job_of(4, "pld", max_tokens=20, logprobs=2, temperature=0.8, stop_ids=())
    async with serving() as served:
        whole = [entry for event in (await served.answer(job)).events for entry in event.logprobs or ()]
        events = await Dying(served.router.stream, 3, 4, deaths=2).answer(job)
    resumed = [entry for event in events for entry in event.logprobs or ()]
    assert [entry.token_id for entry in resumed] == [entry.token_id for entry in whole] == tokens(events)
    assert [entry.logprob for entry in resumed] == pytest.approx([entry.logprob for entry in whole], abs=1e-3)


async def test_a_request_that_kills_every_router_is_given_up() -> None:
    async def run(request: Request) -> AsyncGenerator[StepEvent, None]:
        old, pair.server = pair.server, SubmissionServer(run)
        dead.append(old)
        old.disconnect()
        yield StepEvent(token_ids=[1])

    dead: list[SubmissionServer] = []
    async with submitting(run) as pair:
        with pytest.raises(TargetLostError, match="5 routers were lost"):
            await pair.answer(REQUEST)
        assert pair.attached == len(dead) == 5
        await asyncio.gather(*(server.close() for server in dead))


async def test_a_router_that_hangs_is_left_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(request: Request) -> AsyncGenerator[StepEvent, None]:
        yield StepEvent(token_ids=[4])
        await asyncio.Event().wait()

    async def finish(request: Request) -> AsyncGenerator[StepEvent, None]:
        assert request.emitted == [4]
        yield StepEvent(token_ids=[9], finish_reason="stop")

    async with submitting(hang, beat=0.02) as pair:
        stream = pair.channel.stream(REQUEST)
        events = [await anext(stream)]
        old, pair.server = pair.server, SubmissionServer(finish)
        [hanging] = old._connections
        monkeypatch.setattr(hanging._channel, "send", lambda frame: None)
        events += [event async for event in stream]
        assert tokens(events) == [4, 9]
        await old.close()
