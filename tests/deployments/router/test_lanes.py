"""Several pipelines behind one router: who goes where, and what becomes of a lane's sequences when it is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from deployments.options import RouterOptions
from engine.loop import Completion
from engine.request import Request
from tests.support.slow_stage import Slow

METHODS = ("autoregressive", "pld", "spectra-core", "pld+spectra-core")
MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]


def options(**fields: Any) -> RouterOptions:
    return RouterOptions("tiny", **fields)


async def up(served: Any, *lanes: int) -> None:
    """Wait until these lanes are connected."""
    while not all(served.router.lanes[lane].is_up for lane in lanes):
        await asyncio.sleep(0.005)


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        await asyncio.sleep(0.005)


def n_live(served: Any) -> list[int]:
    """Sequences of every lane."""
    return [len(lane.scheduler.sequences) for lane in served.router.lanes]


@pytest.mark.parametrize("n_stages", [1, 2])
async def test_every_lane_writes_the_same_texts(
    n_stages: int, serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    sampling: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.8})
    jobs = [make_job(number, METHODS[number % 4], **sampling[number % 2]) for number in range(12)]
    async with serving(n_stages, n_lanes=3) as served:
        await up(served, 0, 1, 2)
        answers = [asyncio.create_task(served.answer(job)) for job in jobs]
        await asyncio.sleep(0)
        assert n_live(served) == [4, 4, 4]
        for job, answer in zip(jobs, await asyncio.gather(*answers), strict=True):
            assert answer.token_ids == offline(job).token_ids
        state = await served.settled()
        assert (state["lanes"], state["lanes_up"]) == (3, 3)
        assert state["blocks"] == sum(lane.scheduler.blocks.n_blocks for lane in served.router.lanes)


@pytest.mark.parametrize(("n_stages", "sampling"), [(1, {}), (2, {"temperature": 0.8})], ids=["greedy", "seeded"])
async def test_streams_of_a_lane_that_is_lost_for_good_go_on_in_another(
    n_stages: int, sampling: dict[str, Any], serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    jobs = [make_job(number, METHODS[number % 4], max_tokens=60, stop_ids=(), **sampling) for number in range(8)]
    async with serving(
        n_stages, [Slow] * n_stages, n_lanes=2, options=options(failover=0.1), max_sequences=3
    ) as served:
        await up(served, 0, 1)
        answers = [asyncio.create_task(served.answer(job)) for job in jobs]
        await asyncio.sleep(0)
        assert n_live(served) == [4, 4]  # three run and one waits in each
        await until(lambda: all(lane.scheduler.n_running == 3 for lane in served.router.lanes))
        served.pipelines[0].close()
        for job, answer in zip(jobs, await asyncio.gather(*answers), strict=True):
            assert answer.token_ids == offline(job).token_ids
        state = await served.settled()
        assert (state["lanes_up"], state["pipelines_lost"]) == (1, 1)
        assert 'spectra:sequences_moved_total{model_name="tiny"} 4.0' in served.router.metrics_text()
        assert served.router.is_ready


async def test_a_lane_that_is_soon_back_keeps_its_sequences(serving: Any, make_job: MakeJob, offline: Offline) -> None:
    jobs = [make_job(number, "pld", max_tokens=80, stop_ids=()) for number in range(4)]
    async with serving(1, [Slow], n_lanes=2, options=options(failover=60.0)) as served:
        await up(served, 0, 1)
        answers = [asyncio.create_task(served.answer(job)) for job in jobs]
        await until(lambda: all(lane.scheduler.n_running == 2 for lane in served.router.lanes))
        served.pipelines[1].close()
        await until(lambda: not served.router.lanes[1].is_up)
        assert n_live(served) == [2, 2]
        served.replace(lane=1)
        for job, answer in zip(jobs, await asyncio.gather(*answers), strict=True):
            assert answer.token_ids == offline(job).token_ids
        await served.settled()
        text = served.router.metrics_text()
        assert 'spectra:sequences_moved_total{model_name="tiny"} 0.0' in text
        assert 'spectra:sequences_prefilled_again_total{model_name="tiny"} 2.0' in text
        assert 'spectra:recovery_seconds_count{model_name="tiny"} 1.0' in text


async def test_with_every_lane_lost_the_first_that_is_back_serves_all(
    serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    jobs = [make_job(number, METHODS[number % 4], max_tokens=60, stop_ids=()) for number in range(6)]
    async with serving(1, [Slow], n_lanes=2, options=options(failover=0.05)) as served:
        await up(served, 0, 1)
        answers = [asyncio.create_task(served.answer(job)) for job in jobs]
        await until(lambda: all(lane.scheduler.n_running == 3 for lane in served.router.lanes))
        for stages in served.pipelines:
            stages.close()
        await until(lambda: not served.router.is_ready)
        await asyncio.sleep(0.2)  # both have been away for longer than the others would wait
        late = make_job(10, "pld")
        answers.append(asyncio.create_task(served.answer(late)))
        served.replace(lane=1)
        for job, answer in zip([*jobs, late], await asyncio.gather(*answers), strict=True):
            assert answer.token_ids == offline(job).token_ids
        state = await served.settled()
        assert (state["lanes_up"], state["lane-1.up"], state["lane-0.up"]) == (1, True, False)


async def test_a_lane_that_is_back_takes_over_what_waits_in_others(
    serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    jobs = [make_job(number, "pld", max_tokens=60, stop_ids=()) for number in range(12)]
    async with serving(1, [Slow], n_lanes=2, options=options(failover=0.05), max_sequences=2) as served:
        await up(served, 0, 1)
        served.pipelines[1].close()
        await until(lambda: not served.router.lanes[1].is_up)
        answers = [asyncio.create_task(served.answer(job)) for job in jobs]
        await until(lambda: n_live(served) == [12, 0])
        served.replace(lane=1)
        await until(lambda: n_live(served)[1] > 2)
        assert n_live(served)[0] > 2
        for job, answer in zip(jobs, await asyncio.gather(*answers), strict=True):
            assert answer.token_ids == offline(job).token_ids
        await served.settled()


async def test_a_newcomer_goes_where_least_is_to_be_done(serving: Any, make_job: MakeJob) -> None:
    async with serving(1, [Slow], n_lanes=2) as served:
        await up(served, 0, 1)
        long = asyncio.create_task(served.answer(make_job(1, max_tokens=400, stop_ids=())))
        await asyncio.sleep(0)
        short = [asyncio.create_task(served.answer(make_job(2 + n, max_tokens=40, stop_ids=()))) for n in range(4)]
        await asyncio.sleep(0)
        assert n_live(served) == [1, 4]  # four short ones are less than a long one
        for task in (long, *short):
            task.cancel()
        await asyncio.gather(long, *short, return_exceptions=True)
        await served.settled()


async def test_requests_that_begin_alike_share_a_lane_until_it_has_too_much_to_do(
    serving: Any, make_job: MakeJob
) -> None:
    def alike(number: int, max_tokens: int = 50) -> Request:
        job = make_job(number, max_tokens=max_tokens, stop_ids=())
        return Request([*range(20, 60), *job.prompt], job.params)

    chosen = options(affinity="prefix", affinity_slack=400)
    async with serving(1, [Slow], n_lanes=2, options=chosen) as served:
        await up(served, 0, 1)
        tasks = []
        for number in range(3):
            tasks.append(asyncio.create_task(served.answer(alike(number))))
            await asyncio.sleep(0)
        assert n_live(served) == [3, 0]
        tasks.append(asyncio.create_task(served.answer(make_job(9, max_tokens=50, stop_ids=()))))
        await asyncio.sleep(0)
        assert n_live(served) == [3, 1]  # it has another beginning
        tasks.append(asyncio.create_task(served.answer(alike(4, max_tokens=600), scope="other")))
        await asyncio.sleep(0)
        assert n_live(served) == [3, 2]  # so has, to another tenant, the same text
        tasks.append(asyncio.create_task(served.answer(alike(5, max_tokens=700))))
        await asyncio.sleep(0)
        assert n_live(served) == [4, 2]
        tasks.append(asyncio.create_task(served.answer(alike(6, max_tokens=700))))
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(served.answer(alike(7))))
        await asyncio.sleep(0)
        assert n_live(served)[1] > 2  # the lane of its beginning has more than 400 tokens more to do
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await served.settled()


async def test_health_tells_of_every_lane(serving: Any, make_job: MakeJob) -> None:
    async with serving(1, [Slow], n_lanes=2, options=options(failover=60.0)) as served:
        await up(served, 0, 1)
        running = [asyncio.create_task(served.answer(make_job(n, max_tokens=200, stop_ids=()))) for n in range(3)]
        await until(lambda: sum(lane.scheduler.n_running for lane in served.router.lanes) == 3)
        state = await served.router.state()
        assert state["running"] == state["lane-0.running"] + state["lane-1.running"] == 3
        served.pipelines[0].close()
        await until(lambda: not served.router.lanes[0].is_up)
        state = await served.router.state()
        assert (state["ready"], state["lanes_up"], state["lane-0.pipelines_lost"]) == (True, 1, 1)
        assert 'spectra:pipelines_up{model_name="tiny"} 1.0' in served.router.metrics_text()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
