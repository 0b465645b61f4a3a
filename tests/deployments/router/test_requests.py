"""Requests on real stages over sockets: preempted, refused, resumed, or with a shared prefix."""

from __future__ import annotations

import pytest

from engine.errors import PromptTooLongError, RequestError, UnknownMethodError
from engine.events import LENGTH, STOP
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.target_model.info import TargetInfo
from tests.deployments.conftest import METHODS, Serving, job_of
from tests.deployments.slow_stage import GATE, Gated
from tests.support.metrics import values


async def test_sequences_that_lose_their_blocks_continue_with_identical_output(
    serving: Serving, small_cache: TargetInfo
) -> None:
    jobs = [job_of(number, METHODS[number % 4], temperature=0.7, max_tokens=90) for number in range(8)]
    async with serving(2, target=small_cache) as served:
        answers = await served.check(*jobs)
        assert sum(answer.stats.preemptions for answer in answers) > 0


async def test_bad_requests_are_refused_and_leave_nothing(serving: Serving) -> None:
    good = job_of(1, "spectra-core", max_tokens=60)
    bad: list[tuple[type[Exception], Request]] = [
        (RequestError, Request([], good.params)),
        (RequestError, Request([5, 10**6], good.params, "pld")),
        (RequestError, Request([5, -1], good.params)),
        (RequestError, job_of(2, max_tokens=0)),
        (PromptTooLongError, job_of(2, "pld", max_tokens=5000)),
        (PromptTooLongError, Request([5] * 5000, good.params)),
        (UnknownMethodError, job_of(2, "magic")),
        (UnknownMethodError, job_of(2, "pld+pld")),
        (UnknownMethodError, job_of(2, "medusa")),
    ]
    async with serving(1, [Gated]) as served:
        GATE.close(after=5)
        running = served.begin(good)
        for kind, job in bad:
            with pytest.raises(kind):
                await served.answer(job)
        GATE.open()
        await served.compare([running])


def alike(i: int) -> Request:
    """The first 40 + 10 i tokens of one text, and some of its own."""
    prompt = [*job_of(0, n_prompt=240).prompt[: 40 + 10 * i], *job_of(100 + i).prompt[1:10]]
    return Request(prompt, SamplingParams(max_tokens=20, temperature=0.8 * (i % 2), seed=i), METHODS[i % 4], 16)


async def test_requests_that_begin_alike_get_their_own_texts(serving: Serving) -> None:
    jobs = [alike(i) for i in range(8)]
    async with serving(4, prefill_chunk=32) as served:
        await served.check(*jobs)
        answers = await served.check(*jobs)
        found = [answer.stats.cached_tokens for answer in answers]
        assert all(0 < n < len(job.prompt) for n, job in zip(found, jobs, strict=True))
        text = served.router.metrics_text()
    assert values(text, "vllm:prefix_cache_hits_total")[0] >= sum(found)
    assert values(text, "vllm:prefix_cache_queries_total") == [2 * sum(len(job.prompt) for job in jobs)]


async def test_only_requests_of_one_scope_on_one_pipeline_share_a_prefix(serving: Serving) -> None:
    job = alike(0)
    whole_blocks = (len(job.prompt) - 1) // 16 * 16
    async with serving(2) as served:
        for scope, n_cached in (("a", 0), ("b", 0), ("", 0), ("a", whole_blocks)):
            [answer] = await served.check(job, scope=scope)
            assert answer.stats.cached_tokens == n_cached
        await served.lose()
        served.replace()
        [answer] = await served.check(job, scope="a")
        assert answer.stats.cached_tokens == 0


@pytest.mark.parametrize(("n_stages", "temperature"), [(1, 0.8), (2, 0.0)])
async def test_a_resumed_request_gets_the_rest_of_its_text(n_stages: int, temperature: float, serving: Serving) -> None:
    jobs = [job_of(i, METHODS[i % 4], max_tokens=50, stop_ids=(), temperature=temperature * (i != 3)) for i in range(8)]
    emitted = (1, 2, 17, 49, 17, 49, 1, 2)
    async with serving(n_stages, max_sequences=5) as served:
        answers = [
            served.begin(job, emitted=served.offline(job).token_ids[:n], resumed=True)
            for job, n in zip(jobs, emitted, strict=True)
        ]
        await served.compare(answers)
        assert all(answer.stats.prompt_tokens > 0 for answer in answers)
        text = served.router.metrics_text()
    assert values(text, "vllm:time_to_first_token_seconds_count") == [0]
    assert values(text, "vllm:generation_tokens_total") == [sum(50 - n for n in emitted)]


async def test_a_text_that_was_complete_ends_at_once(serving: Serving) -> None:
    job = job_of(1, "pld", max_tokens=3, stop_ids=(9,))
    async with serving() as served:
        for emitted, reason, stop in (([5, 6, 7], LENGTH, None), ([5, 9], STOP, 9)):
            answer = await served.answer(job, emitted=emitted, resumed=True)
            [event] = answer.events
            assert (event.token_ids, event.finish_reason, event.stop_reason) == ([], reason, stop)
            assert answer.stats.prompt_tokens == len(job.prompt)


async def test_the_library_learns_the_whole_output(serving: Serving) -> None:
    learnt: list[tuple[str, list[int]]] = []
    job = job_of(3, "pld", max_tokens=30, stop_ids=())
    async with serving(learn=lambda namespace, tokens: learnt.append((namespace, tokens))) as served:
        text = served.offline(job).token_ids
        for emitted in (text[:10], text):
            await served.answer(job, emitted=emitted, resumed=True, namespace="mine")
    assert learnt == [("mine", text), ("mine", text)]
