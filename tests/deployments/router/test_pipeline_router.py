"""The router on real stages behind sockets: the offline engine's texts, in any company, and figures that add up."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deployments.transport.addresses import parse
from engine.errors import OverloadedError, PromptTooLongError, RequestError, UnknownMethodError
from engine.events import LENGTH, STOP, SourceCounts
from engine.loop import Completion
from engine.request import Request

METHODS = ("autoregressive", "pld", "spectra-core", "pld+spectra-core")
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.8, "top_p": 0.95},
    "penalties": {"temperature": 1.0, "repetition_penalty": 1.2, "presence_penalty": 0.3, "min_tokens": 5},
}
MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("n_stages", [1, 2, 4])
async def test_every_method_writes_the_offline_engines_text(
    n_stages: int, sampling: str, serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    jobs = [make_job(number, method, **SAMPLING[sampling]) for number in range(3) for method in METHODS]
    async with serving(n_stages) as served:
        answers = await asyncio.gather(*(served.answer(job) for job in jobs))
        for job, answer in zip(jobs, answers, strict=True):
            wanted = offline(job)
            assert answer.token_ids == wanted.token_ids, job.method
            assert answer.events[-1].finish_reason == wanted.finish_reason
        await served.settled()


@pytest.mark.parametrize("method", METHODS)
async def test_events_and_their_figures_agree(method: str, serving: Any, make_job: MakeJob) -> None:
    async with serving() as served:
        answer = await served.answer(make_job(1, method, max_tokens=60))
    first, *steps = answer.events
    stats = answer.events[-1].stats
    assert [event.stats for event in answer.events[:-1]] == [None] * len(steps)
    assert first.drafts is None  # the prefill's event
    assert all(event.drafts is not None for event in steps)
    assert len(first.token_ids) == 1
    assert [len(event.token_ids) for event in steps] == stats.step_tokens
    assert stats.target_forwards == len(steps)
    assert len(answer.token_ids) == 60 == 1 + sum(stats.step_tokens)
    sums: dict[str, SourceCounts] = {}
    for event in steps:
        for name, counts in event.drafts.items():
            sums[name] = counts.plus(sums[name]) if name in sums else counts
    assert sums == stats.by_source
    assert stats.drafted_tokens == sum(counts.drafted for counts in sums.values())
    assert stats.accepted_tokens == sum(counts.accepted for counts in sums.values())
    assert set(sums) == {name for name in method.split("+") if name != "autoregressive"}


async def test_the_drafts_of_a_text_that_repeats_itself_are_accepted(serving: Any, make_job: MakeJob) -> None:
    async with serving() as served:
        answer = await served.answer(make_job(1, "pld", max_tokens=60, logit_bias={7: 100.0}))
    assert set(answer.token_ids[1:]) == {7}
    assert answer.events[-1].stats.by_source["pld"].accepted > 40


@pytest.mark.parametrize("n_stages", [1, 2])
async def test_requests_that_come_and_go_do_not_change_each_others_text(
    n_stages: int, serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    chance = random.Random(n_stages)

    async def come(number: int) -> None:
        await asyncio.sleep(chance.random() * 0.5)
        sampling = {"temperature": 0.9} if number % 2 else {}
        job = make_job(number, METHODS[number % 4], max_tokens=chance.randrange(1, 60), **sampling)
        assert (await served.answer(job)).token_ids == offline(job).token_ids

    async with serving(n_stages, max_sequences=5, prefill_chunk=8) as served:
        await asyncio.gather(*(come(number) for number in range(30)))
        await served.settled()


async def test_sequences_that_lose_their_blocks_go_on_with_the_same_text(
    serving: Any, make_job: MakeJob, offline: Offline, small_cache: Any
) -> None:
    jobs = [make_job(number, METHODS[number % 4], temperature=0.7, max_tokens=90) for number in range(8)]
    async with serving(2, target=small_cache) as served:
        answers = await asyncio.gather(*(served.answer(job) for job in jobs))
        assert [answer.token_ids for answer in answers] == [offline(job).token_ids for job in jobs]
        assert sum(answer.events[-1].stats.preemptions for answer in answers) > 0
        await served.settled()


async def test_a_full_queue_refuses_with_a_time_to_come_back_and_serves_those_it_took(
    serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    async with serving(max_sequences=1, max_waiting=3) as served:
        jobs = [make_job(number, "pld") for number in range(12)]
        answers = await asyncio.gather(*(served.answer(job) for job in jobs), return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, OverloadedError)]
        assert len(refused) >= 8
        assert all(error.retry_after > 0 for error in refused)
        served_jobs = [(j, a) for j, a in zip(jobs, answers, strict=True) if not isinstance(a, OverloadedError)]
        assert len(served_jobs) >= 3
        assert all(answer.token_ids == offline(job).token_ids for job, answer in served_jobs)
        await served.settled()


async def test_bad_requests_are_refused_and_leave_nothing(serving: Any, make_job: MakeJob, offline: Offline) -> None:
    good = make_job(1, "spectra-core", max_tokens=200)
    bad: list[tuple[type[Exception], Request]] = [
        (RequestError, Request([], good.params)),
        (RequestError, Request([5, 10**6], good.params, "pld")),
        (RequestError, Request([5, -1], good.params)),
        (RequestError, make_job(2, max_tokens=0)),
        (PromptTooLongError, make_job(2, "pld", max_tokens=5000)),
        (PromptTooLongError, Request([5] * 5000, good.params)),
        (UnknownMethodError, make_job(2, "magic")),
        (UnknownMethodError, make_job(2, "pld+pld")),
        (UnknownMethodError, make_job(2, "medusa")),
    ]
    async with serving() as served:
        running = asyncio.create_task(served.answer(good))
        for kind, job in bad:
            with pytest.raises(kind):
                await served.answer(job)
        assert (await running).token_ids == offline(good).token_ids
        await served.settled()


async def test_lower_priority_numbers_go_first(serving: Any, make_job: MakeJob) -> None:
    done: list[int] = []

    async def come(priority: int) -> None:
        job = make_job(priority)
        await served.answer(Request(job.prompt, job.params, priority=priority))
        done.append(priority)

    async with serving(max_sequences=1) as served:
        first = asyncio.create_task(come(0))
        await asyncio.sleep(0)
        await asyncio.gather(first, *(come(priority) for priority in (5, 9, 1)))
    assert done == [0, 1, 5, 9]


async def test_a_silent_stranger_does_not_keep_the_router_waiting(serving: Any, make_job: MakeJob) -> None:
    async with serving(2) as served:
        strangers = []
        for worker in served.stages.workers * 4:
            family, where = parse(worker.address)
            strangers.append(socket.socket(family, socket.SOCK_STREAM))
            strangers[-1].connect(where)
        began = time.monotonic()
        await served.answer(make_job(1, "pld"))
        assert time.monotonic() - began < 4  # one of them alone has five seconds to say something
        for stranger in strangers:
            stranger.close()


async def test_metrics_have_the_names_of_vllm_and_the_sums_of_the_answers(serving: Any, make_job: MakeJob) -> None:
    jobs = [make_job(number, METHODS[number % 4], max_tokens=20 + number) for number in range(8)]
    async with serving() as served:
        answers = await asyncio.gather(*(served.answer(job) for job in jobs))
        cancelled = served.router.stream(make_job(20, max_tokens=500))
        await anext(cancelled)
        await cancelled.aclose()
        await served.settled()
        metrics = samples(served.router.metrics_text())
    stats = [answer.events[-1].stats for answer in answers]
    steps = [event for answer in answers for event in answer.events[1:]]
    drafts = [counts for event in steps for counts in event.drafts.values()]
    assert metrics["vllm:generation_tokens_total"] >= sum(len(a.token_ids) for a in answers) + 1
    assert metrics["vllm:prompt_tokens_total"] == sum(s.prompt_tokens for s in stats) + len(make_job(20).prompt)
    assert metrics["vllm:spec_decode_num_drafts_total"] == sum(bool(event.drafts) for event in steps)
    assert metrics["vllm:spec_decode_num_draft_tokens_total"] == sum(counts.drafted for counts in drafts)
    assert metrics["vllm:spec_decode_num_accepted_tokens_total"] == sum(counts.accepted for counts in drafts)
    reasons = [answer.events[-1].finish_reason for answer in answers]
    assert metrics.get("vllm:request_success_total/stop", 0) == reasons.count(STOP)
    assert metrics["vllm:request_success_total/length"] == reasons.count(LENGTH)
    assert metrics["vllm:request_success_total/abort"] == 1
    assert metrics["vllm:time_to_first_token_seconds_count"] == len(jobs) + 1
    assert metrics["vllm:e2e_request_latency_seconds_count"] == len(jobs)
    assert metrics["vllm:num_requests_running"] == metrics["vllm:kv_cache_usage_perc"] == 0
    assert metrics["vllm:num_requests_waiting"] == metrics["vllm:num_preemptions_total"] == 0


def samples(text: str) -> dict[str, float]:
    """Value by name; a finished reason is added to the name."""
    return {
        "/".join(filter(None, (sample.name, sample.labels.get("finished_reason")))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
