"""Which requests are refused, for good or because of too much work, when they may come back, and that no others are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from typing import Any

import msgspec
import pytest

from deployments.options import RouterOptions
from deployments.router.admission import Admission
from deployments.router.service_rate import WaitEstimate
from engine.errors import OverloadedError, RequestError
from engine.loop import Completion
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.scheduler import SchedulerOptions
from engine.scheduling.sequence import Sequence
from engine.target.info import TargetInfo
from tests.support.slow_stage import Slow

METHODS = ("autoregressive", "pld", "spectra-core", "pld+spectra-core")
MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]


class Crowd:
    """Requests that were sent and are not read to their end; admitted or refused at once."""

    def __init__(self, served: Any) -> None:
        self._served = served
        self._tasks: list[asyncio.Task[Any]] = []

    async def send(self, job: Request, **more: Any) -> OverloadedError | None:
        """Send one; returns the refusal, if it was refused."""
        task = asyncio.create_task(self._served.answer(job, **more))
        await asyncio.sleep(0)
        if task.done():
            error = task.exception()
            assert isinstance(error, OverloadedError)
            return error
        self._tasks.append(task)
        return None

    async def go(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def endless(make_job: MakeJob, number: int, priority: int = 0) -> Request:
    job = make_job(number, max_tokens=500, stop_ids=())
    return msgspec.structs.replace(job, priority=priority)


async def acquainted(served: Any, make_job: MakeJob) -> None:
    """The router has seen how fast its lanes are, and that requests use all the tokens they may."""
    await served.answer(make_job(50, max_tokens=10, stop_ids=()))
    await served.settled()


async def test_of_four_times_what_fits_the_excess_is_refused_and_the_rest_gets_its_text(
    serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    jobs = [make_job(number, METHODS[number % 4], max_tokens=30) for number in range(32)]
    async with serving(1, [Slow], max_sequences=2, max_waiting=6) as served:
        await acquainted(served, make_job)
        outcomes = await asyncio.gather(*(served.answer(job) for job in jobs), return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, OverloadedError)]
        assert len(refused) == 24
        assert all(error.retry_after >= 1.0 for error in refused)
        admitted = [(j, a) for j, a in zip(jobs, outcomes, strict=True) if not isinstance(a, OverloadedError)]
        assert all(not isinstance(a, BaseException) and a.token_ids == offline(j).token_ids for j, a in admitted)
        await served.settled()
        assert 'spectra:requests_refused_total{model_name="tiny"} 24.0' in served.router.metrics_text()


async def test_the_wait_that_is_expected_grows_with_the_queue(serving: Any, make_job: MakeJob) -> None:
    async with serving(1, [Slow], max_sequences=2, max_waiting=8) as served:
        await acquainted(served, make_job)
        crowd, waits, lane = Crowd(served), [], served.router.lanes[0]
        rate = copy(lane.service_rate)  # steps beside this test change the lane's own
        for number in range(10):
            newcomer = endless(make_job, 99)
            sequence = Sequence.of(99, newcomer)
            waits.append(WaitEstimate(lane.scheduler, rate).seconds(sequence))
            assert await crowd.send(endless(make_job, number)) is None
        assert waits[:2] == [0.0, 0.0]
        assert waits[2:] == sorted(waits[2:])
        assert waits[-1] > 3 * waits[2] > 0
        await crowd.go()


async def test_who_would_wait_too_long_is_told_when_to_come_back(serving: Any, make_job: MakeJob) -> None:
    chosen = RouterOptions("tiny", max_wait=2.0)
    async with serving(1, [Slow], options=chosen, max_sequences=1, max_waiting=8) as served:
        await acquainted(served, make_job)
        crowd = Crowd(served)
        assert await crowd.send(endless(make_job, 1)) is None  # takes ten seconds at least
        error = await crowd.send(endless(make_job, 2))
        assert error is not None
        assert "more than 2 s" in str(error)
        assert error.retry_after > 5
        await crowd.go()
        await served.settled()


async def test_where_memory_is_short_the_wait_counts_though_places_are_left(
    serving: Any, make_job: MakeJob, small_cache: TargetInfo
) -> None:
    chosen = RouterOptions("tiny", max_wait=10.0)
    async with serving(1, [Slow], target=small_cache, options=chosen, max_sequences=64) as served:
        await acquainted(served, make_job)
        crowd = Crowd(served)
        jobs = [make_job(number, max_tokens=180, stop_ids=()) for number in range(60)]  # 3.6 s each, two fit to the end
        outcomes = [await crowd.send(job) for job in jobs]
        refused = [error for error in outcomes if error is not None]
        assert outcomes[:2] == [None, None]
        assert refused
        assert outcomes[-1] is not None
        assert all("more than 10 s" in str(error) for error in refused)
        await crowd.go()


async def test_many_refusals_need_one_look_at_the_queue(
    serving: Any, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(1, [Slow], max_sequences=1, max_waiting=2) as served:
        crowd, [lane], now = Crowd(served), served.router.lanes, [0.0]
        for number in range(3):
            assert await crowd.send(endless(make_job, number)) is None
        limits = SchedulerOptions(max_sequences=1, max_waiting=2)
        admission = Admission([lane], RouterOptions("tiny", scheduler=limits), lambda: now[0])
        looks, snapshot = [], lane.scheduler.snapshot_queue
        monkeypatch.setattr(lane.scheduler, "snapshot_queue", lambda: looks.append(now[0]) or snapshot())

        def refuse(n_before: int) -> None:
            for _ in range(100):
                newcomer = sequence(4, 10)
                newcomer.seq = n_before
                with pytest.raises(OverloadedError):
                    admission.check(newcomer, lane)

        refuse(3)
        assert looks == [0.0]
        refuse(4)  # one was admitted
        assert looks == [0.0, 0.0]
        now[0] = 1.0
        refuse(4)
        assert looks == [0.0, 0.0, 1.0]
        await crowd.go()


async def test_a_newcomer_is_judged_by_what_is_ahead_of_it(serving: Any, make_job: MakeJob) -> None:
    chosen = RouterOptions("tiny", max_wait=None)
    async with serving(1, [Slow], options=chosen, max_sequences=1, max_waiting=3) as served:
        await acquainted(served, make_job)
        crowd = Crowd(served)
        for number in range(4):
            assert await crowd.send(endless(make_job, number)) is None
        last = await crowd.send(endless(make_job, 5))
        first = await crowd.send(endless(make_job, 6, priority=-1))
        assert last is not None
        assert first is not None
        assert last.retry_after > 2 * first.retry_after  # four are ahead of the one, one of the other
        await crowd.go()


async def test_a_flood_of_one_tenant_does_not_shut_out_another(serving: Any, make_job: MakeJob) -> None:
    async with serving(1, [Slow], max_sequences=1, max_waiting=4) as served:
        crowd = Crowd(served)
        floods = [await crowd.send(endless(make_job, number), tenant="flood") for number in range(10)]
        assert [error is None for error in floods] == [True] * 5 + [False] * 5
        others = [await crowd.send(endless(make_job, number), tenant="other") for number in range(4)]
        assert [error is None for error in others] == [True, True, False, False]  # an equal share: two of four
        assert await crowd.send(endless(make_job, 20), tenant="third") is None
        assert await crowd.send(endless(make_job, 20), tenant="flood") is not None
        await crowd.go()


async def test_however_many_tenants_there_are_the_queue_has_an_end(serving: Any, make_job: MakeJob) -> None:
    async with serving(1, [Slow], max_sequences=1, max_waiting=4) as served:
        crowd = Crowd(served)
        outcomes = [await crowd.send(endless(make_job, number), tenant=f"tenant-{number}") for number in range(20)]
        assert sum(error is None for error in outcomes) == 9  # one runs, twice four wait
        await crowd.go()


async def test_what_a_lost_router_let_in_is_not_refused(serving: Any, make_job: MakeJob) -> None:
    async with serving(1, [Slow], max_sequences=1, max_waiting=2) as served:
        crowd = Crowd(served)
        for number in range(3):
            assert await crowd.send(endless(make_job, number)) is None
        assert await crowd.send(endless(make_job, 3)) is not None
        assert await crowd.send(endless(make_job, 4), resumed=True) is None
        await crowd.go()


async def test_two_lanes_let_in_twice_as_many_to_run(serving: Any, make_job: MakeJob) -> None:
    async with serving(1, [Slow], n_lanes=2, max_sequences=2, max_waiting=3) as served:
        while not all(lane.is_up for lane in served.router.lanes):
            await asyncio.sleep(0.005)
        crowd = Crowd(served)
        outcomes = [await crowd.send(endless(make_job, number)) for number in range(12)]
        assert sum(error is None for error in outcomes) == 2 * 2 + 3
        await crowd.go()


def sequence(n_prompt: int, max_tokens: int) -> Sequence:
    return Sequence.of(0, Request([5] * n_prompt, SamplingParams(max_tokens=max_tokens), max_nodes=64))


@pytest.mark.parametrize("method", ["pld", "autoregressive"])
@pytest.mark.parametrize("options", [RouterOptions("tiny", limit_nodes=32), RouterOptions("tiny", limit_nodes=999)])
async def test_more_nodes_than_the_limit_are_refused_and_not_cut(
    method: str, options: RouterOptions, serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    job = make_job(1, method)
    async with serving(options=options, max_step_rows=33) as served:
        with pytest.raises(
            RequestError, match="max_nodes is 33; this server drafts at most 32 nodes per step"
        ) as refused:
            await served.answer(msgspec.structs.replace(job, max_nodes=33))
        assert refused.value.param == "max_nodes"
        assert (await served.answer(msgspec.structs.replace(job, max_nodes=32))).token_ids == offline(job).token_ids
        await served.settled()
