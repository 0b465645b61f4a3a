"""Requests that begin alike, on real stages: less to read, the same text, nothing across scopes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from engine.loop import Completion
from engine.request import Request
from engine.sampling.params import SamplingParams

METHODS = ("autoregressive", "pld", "token-recycling", "pld+spectra-core")
Offline = Callable[[Request], Completion]


def jobs_that_begin_alike(n: int) -> list[Request]:
    chance = random.Random(1)
    shared = [1, *(chance.randrange(3, 300) for _ in range(120))]
    return [
        Request(
            [*shared[: 40 + 10 * i], *(chance.randrange(3, 300) for _ in range(9))],
            SamplingParams(max_tokens=20, temperature=0.8 * (i % 2), seed=i),
            METHODS[i % 4],
            max_nodes=16,
        )
        for i in range(n)
    ]


@pytest.mark.parametrize("n_stages", [1, 2, 4])
async def test_requests_that_begin_alike_write_what_each_would_alone(
    n_stages: int, serving: Any, offline: Offline
) -> None:
    jobs = jobs_that_begin_alike(8)
    async with serving(n_stages, prefill_chunk=32) as served:
        for _ in range(2):
            answers = await asyncio.gather(*(served.answer(job) for job in jobs))
            assert [answer.token_ids for answer in answers] == [offline(job).token_ids for job in jobs]
        found = [answer.events[-1].stats.cached_tokens for answer in answers]
        assert all(0 < n < len(job.prompt) for n, job in zip(found, jobs, strict=True))
        await served.settled()
        text = served.router.metrics_text()
        hits = next(line for line in text.splitlines() if line.startswith("vllm:prefix_cache_hits_total"))
        asked = next(line for line in text.splitlines() if line.startswith("vllm:prefix_cache_queries_total"))
        assert float(hits.split()[-1]) >= sum(found)
        assert float(asked.split()[-1]) == 2 * sum(len(job.prompt) for job in jobs)


async def test_a_scope_finds_only_its_own_texts(serving: Any, offline: Offline) -> None:
    job = jobs_that_begin_alike(1)[0]
    async with serving(2) as served:
        for scope, n in (("a", 0), ("b", 0), ("", 0), ("a", (len(job.prompt) - 1) // 16 * 16)):
            answer = await served.answer(job, scope=scope)
            assert answer.token_ids == offline(job).token_ids
            assert answer.events[-1].stats.cached_tokens == n


async def test_a_fresh_pipeline_has_nothing_to_share(serving: Any, offline: Offline) -> None:
    job = jobs_that_begin_alike(1)[0]
    async with serving(2) as served:
        await served.answer(job)
        served.replace()
        while served.router.is_ready:
            await asyncio.sleep(0.005)
        answer = await served.answer(job)
        assert answer.token_ids == offline(job).token_ids
        assert answer.events[-1].stats.cached_tokens == 0
