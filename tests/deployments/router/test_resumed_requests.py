"""Requests that a lost router had begun: the next one goes on behind what was emitted, with the same text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from engine.events import LENGTH, STOP
from engine.loop import Completion
from engine.request import Request

METHODS = ("autoregressive", "pld", "spectra-core", "pld+spectra-core")
MakeJob = Callable[..., Request]
Offline = Callable[[Request], Completion]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8}], ids=["greedy", "seeded"])
@pytest.mark.parametrize("n_stages", [1, 2])
async def test_the_rest_of_the_text_is_what_it_would_have_been(
    n_stages: int, sampling: dict[str, Any], serving: Any, make_job: MakeJob, offline: Offline
) -> None:
    jobs = [make_job(number, METHODS[number % 4], max_tokens=50, stop_ids=(), **sampling) for number in range(12)]
    whole = [offline(job).token_ids for job in jobs]
    had = [(1, 2, 17, 49)[number % 4 if number < 4 else number // 3] for number in range(12)]
    async with serving(n_stages, max_sequences=5) as served:
        answers = await asyncio.gather(
            *(served.answer(job, emitted=text[:n], resumed=True) for job, text, n in zip(jobs, whole, had, strict=True))
        )
        for text, n, answer in zip(whole, had, answers, strict=True):
            assert answer.token_ids == text[n:]
            assert answer.events[-1].finish_reason == LENGTH
            assert answer.events[-1].stats.prompt_tokens > 0
        await served.settled()


async def test_a_text_that_was_complete_ends_at_once(serving: Any, make_job: MakeJob) -> None:
    async with serving() as served:
        job = make_job(1, "pld", max_tokens=3, stop_ids=(9,))
        by_length = await served.answer(job, emitted=[5, 6, 7], resumed=True)
        assert [event.token_ids for event in by_length.events] == [[]]
        assert by_length.events[0].finish_reason == LENGTH
        by_stop = await served.answer(job, emitted=[5, 9], resumed=True)
        assert [event.token_ids for event in by_stop.events] == [[]]
        assert (by_stop.events[0].finish_reason, by_stop.events[0].stop_reason) == (STOP, 9)
        assert by_stop.events[0].stats is not None
        await served.settled()


async def test_all_of_the_output_is_learnt(serving: Any, make_job: MakeJob, offline: Offline) -> None:
    learnt: list[tuple[str, list[int]]] = []
    job = make_job(3, "pld", max_tokens=30, stop_ids=())
    text = offline(job).token_ids
    async with serving(learn=lambda namespace, tokens: learnt.append((namespace, tokens))) as served:
        await served.answer(job, emitted=text[:10], resumed=True, namespace="mine")
        await served.answer(job, emitted=text, resumed=True, namespace="mine")
    assert learnt == [("mine", text), ("mine", text)]


async def test_a_long_text_still_fits_when_it_goes_on(serving: Any, make_job: MakeJob, offline: Offline) -> None:
    short = make_job(2, "pld")
    job = make_job(2, "pld", max_tokens=1024 - len(short.prompt), stop_ids=())  # all of the context
    text = offline(job).token_ids
    async with serving() as served:
        assert (await served.answer(job, emitted=text[:900], resumed=True)).token_ids == text[900:]


async def test_metrics_count_a_prompt_once_per_request(serving: Any, make_job: MakeJob, offline: Offline) -> None:
    job = make_job(2, "pld", max_tokens=30, stop_ids=())
    async with serving() as served:
        await served.answer(job, emitted=offline(job).token_ids[:10], resumed=True)
        text = served.router.metrics_text()
    assert 'vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 0.0' in text
    assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 20.0' in text
