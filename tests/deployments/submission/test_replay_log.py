"""A router that goes in the middle of its requests: the next one goes on, and neither text nor figures show it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from deployments.router.router import Router
from deployments.submission.protocol import Attachment
from deployments.submission.server import RunRequest, SubmissionServer
from engine.errors import OverloadedError, TargetLostError
from engine.events import StepEvent
from engine.loop import Completion
from engine.request import Request
from engine.sampling.params import SamplingParams
from tests.deployments.conftest import Served
from tests.support.submission import Submitting, check_figures, submitting, tokens

METHODS = ("autoregressive", "pld", "spectra-core", "pld+spectra-core")
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.8, "top_p": 0.95},
    "penalties": {"temperature": 1.0, "repetition_penalty": 1.2, "presence_penalty": 0.3, "min_tokens": 8},
}
MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]


class Dying:
    """Runs requests on a router and cuts its ingresses off at a chosen event, each time it is reached.

    Args:
        run: of the router.
        after: events that are let out before; the next router lets out as many again.
        turns: loop turns the last of them is given to leave: 0 loses it, a few let it arrive.
        deaths: how often.
    """

    def __init__(self, run: RunRequest, after: int, turns: int, deaths: int) -> None:
        self._run = run
        self._after = after
        self._turns = turns
        self.left = deaths
        self.pair: Submitting | None = None
        self._dead: list[SubmissionServer] = []

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
        if self.left and self.pair is not None:
            self.left -= 1
            self._dead.append(self.pair.server)
            self.pair.server = SubmissionServer(self.run)
            self._dead[-1].cut()

    async def close(self) -> None:
        for server in self._dead:
            await server.close()


@pytest.mark.parametrize("turns", [0, 4])
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("method", METHODS)
async def test_a_request_cut_off_at_any_event_goes_on_with_the_identical_text(
    method: str, sampling: str, turns: int, serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    job = make_job(5, method, max_tokens=12, **SAMPLING[sampling])
    wanted = offline(job)
    async with serving() as served:
        n_events = len((await served.answer(job)).events)
        for after in range(n_events):
            dying = Dying(served.router.stream, after, turns, deaths=1)
            async with submitting(dying.run) as pair:
                dying.pair = pair
                events = await pair.answer(job)
                await dying.close()
            assert dying.left == 0, f"cut {after} of {n_events} was never reached"
            assert tokens(events) == wanted.token_ids, after
            assert events[-1].finish_reason == wanted.finish_reason
            assert check_figures(events, len(job.prompt)).preemptions >= 1
        await served.settled()


async def test_logprobs_of_tokens_that_were_emitted_before_are_not_repeated(serving: Any, make_job: MakeJob) -> None:
    job = make_job(4, "pld", max_tokens=20, logprobs=2, temperature=0.8, stop_ids=())
    async with serving() as served:
        whole = [entry for event in (await served.answer(job)).events for entry in event.logprobs]
        dying = Dying(served.router.stream, 3, 4, deaths=2)
        async with submitting(dying.run) as pair:
            dying.pair = pair
            events = await pair.answer(job)
            await dying.close()
    resumed = [entry for event in events for entry in event.logprobs or ()]
    assert [entry.token_id for entry in resumed] == [entry.token_id for entry in whole] == tokens(events)
    assert [entry.logprob for entry in resumed] == pytest.approx([entry.logprob for entry in whole], abs=1e-3)


def reopened(served: Served) -> Router:
    """A new router on the same stages, as Serve starts one after the old one was killed."""
    old = served.router
    served.router = Router(old.options, old.info, old._draft_client, [served.target(0)])
    served.router.start()
    return old


@pytest.mark.parametrize("n_stages", [1, 2])
async def test_a_crowd_moves_to_a_new_router_again_and_again(
    n_stages: int, serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    jobs = [make_job(n, METHODS[n % 4], temperature=0.8, max_tokens=100, stop_ids=()) for n in range(10)]
    async with (
        serving(n_stages, max_sequences=4, max_waiting=4) as served,
        submitting(lambda request: served.router.stream(request)) as pair,
    ):
        # Two more than a queue of four lets in at once come when the first are running already.
        answers = [asyncio.create_task(pair.answer(job)) for job in jobs[:4]]
        await until_running(served, 4)
        answers += [asyncio.create_task(pair.answer(job)) for job in jobs[4:8]]
        for _ in range(3):
            await asyncio.sleep(0.1)
            old_server, old = pair.server, reopened(served)
            pair.server = SubmissionServer(served.router.stream)
            old_server.cut()
            await old_server.close()
            await old.close()
        for job, answer in zip(jobs, answers, strict=False):
            events = await answer
            assert tokens(events) == offline(job).token_ids
            check_figures(events, len(job.prompt))
        await served.settled()


async def until_running(served: Served, n: int) -> None:
    async with asyncio.timeout(240):
        while (await served.router.state())["running"] < n:
            await asyncio.sleep(0.005)


async def test_an_interrupted_request_is_let_in_past_a_full_queue(
    serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    job = make_job(2, temperature=0.8, max_tokens=300, stop_ids=())
    async with serving(max_sequences=1, max_waiting=1) as served, submitting(served.router.stream) as pair:
        first = asyncio.create_task(pair.answer(job))
        await until_running(served, 1)
        second = asyncio.create_task(pair.answer(job))
        async with asyncio.timeout(240):
            while not (await served.router.state())["waiting"]:
                await asyncio.sleep(0.005)
        with pytest.raises(OverloadedError):
            await pair.answer(job)
        had = offline(job).token_ids[:7]
        for emitted in (had, []):
            late = msgspec.structs.replace(job, emitted=emitted, resumed=True)
            events = [event async for event in served.router.stream(late)]
            assert emitted + tokens(events) == offline(job).token_ids
        assert [tokens(await answer) for answer in (first, second)] == [offline(job).token_ids] * 2
        await served.settled()


async def test_a_request_that_kills_every_router_is_given_up() -> None:
    async def run(request: Request) -> AsyncGenerator[StepEvent, None]:
        old, pair.server = pair.server, SubmissionServer(run)
        dead.append(old)
        old.cut()
        yield StepEvent(token_ids=[1])

    dead: list[SubmissionServer] = []
    async with submitting(run) as pair:
        with pytest.raises(TargetLostError, match="5 routers were lost"):
            await pair.answer(Request([1], SamplingParams(seed=1)))
        assert pair.attached == len(dead) == 5
        await asyncio.gather(*(server.close() for server in dead))


async def test_a_router_that_hangs_is_left_for_the_next_one() -> None:
    """Its connection stands, but its event loop is stuck."""
    stuck, release, told = threading.Event(), threading.Event(), asyncio.Event()
    here = asyncio.get_running_loop()

    async def hang(request: Request) -> AsyncGenerator[StepEvent, None]:
        yield StepEvent(token_ids=[4])
        await asyncio.sleep(0.05)  # the event may leave
        stuck.set()
        release.wait()

    async def finish(request: Request) -> AsyncGenerator[StepEvent, None]:
        assert request.emitted == [4]
        yield StepEvent(token_ids=[9], finish_reason="stop")

    async def live(attached: asyncio.Future[Attachment]) -> None:
        hanging = SubmissionServer(hang)
        attachment = await hanging.attachment()
        here.call_soon_threadsafe(attached.set_result, attachment)
        while not stuck.is_set() or hanging._connections:  # back to life, it finds itself left
            await asyncio.sleep(0.01)
        await hanging.close()
        here.call_soon_threadsafe(told.set)

    attached: asyncio.Future[Attachment] = here.create_future()
    thread = threading.Thread(target=lambda: asyncio.run(live(attached)))
    thread.start()
    try:
        async with submitting(finish, beat=0.1) as pair:
            old = await attached
            pair.attach = lambda: asyncio.sleep(0, old)  # type: ignore[method-assign]
            answer = asyncio.create_task(pair.answer(Request([1], SamplingParams(seed=1))))
            await asyncio.to_thread(stuck.wait, 10)
            del pair.attach  # the method again
            assert tokens(await asyncio.wait_for(answer, 120)) == [4, 9]
            release.set()
            await asyncio.wait_for(told.wait(), 120)
    finally:
        release.set()
        thread.join(10)
