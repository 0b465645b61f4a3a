"""Limits of a key: requests a minute, tokens a minute, concurrent requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.access.caller import StatusError
from app.access.quota import Allowance, QuotaLimits
from tests.app.access.conftest import Keys, Serve
from tests.app.conftest import error_of
from tests.support.waiting import wait_until_async

TEXT = {"model": "tiny", "prompt": [5, 6, 7, 8], "max_tokens": 6, "ignore_eos": True, "temperature": 0}
PATH = "/v1/completions"


class QuotaClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def refusal(allowance: Allowance, tokens: int | None = None) -> StatusError | None:
    try:
        if tokens is None:
            allowance.enter()
        else:
            allowance.reserve(tokens)
    except StatusError as error:
        return error
    return None


def test_requests_refill_evenly_up_to_one_minutes_worth() -> None:
    clock = QuotaClock()
    allowance = Allowance(QuotaLimits(requests=6), 1, clock)
    assert [refusal(allowance) for _ in range(6)] == [None] * 6
    refused = refusal(allowance)
    assert refused is not None
    assert (refused.status, refused.headers["Retry-After"]) == (429, "10")
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers["x-ratelimit-reset-requests"] == "60s"
    clock.now += 10
    assert refusal(allowance) is None
    assert refusal(allowance) is not None
    clock.now += 1000
    assert [refusal(allowance) is None for _ in range(7)] == [True] * 6 + [False]


def test_changed_limits_keep_the_count_of_used_requests() -> None:
    allowance = Allowance(QuotaLimits(requests=10, tokens=100), 1, QuotaClock())
    assert [refusal(allowance) for _ in range(8)] == [None] * 8
    allowance.change(QuotaLimits(requests=8, tokens=None, concurrent=8))
    assert allowance.headers()["x-ratelimit-remaining-requests"] == "0"
    assert "x-ratelimit-limit-tokens" not in allowance.headers()
    allowance.change(QuotaLimits(requests=20))
    assert allowance.headers()["x-ratelimit-remaining-requests"] == "12"


def test_a_request_above_a_replicas_share_waits_for_the_whole_share_and_leaves_a_debt() -> None:
    clock = QuotaClock()
    allowance = Allowance(QuotaLimits(tokens=120), 4, clock)
    assert refusal(allowance, 100) is None
    clock.now += 60 * 3
    assert refusal(allowance, 100) is not None
    clock.now += 60
    assert refusal(allowance, 100) is None


@given(
    st.integers(1, 5),
    st.integers(1, 500),
    st.lists(st.tuples(st.integers(0, 4), st.floats(0, 30), st.integers(1, 600)), max_size=60),
)
def test_replicas_never_exceed_the_limit(replicas: int, limit: int, asked: list[tuple[int, float, int]]) -> None:
    clock = QuotaClock()
    shares = [Allowance(QuotaLimits(tokens=limit), replicas, clock) for _ in range(replicas)]
    admitted = 0
    for replica, pause, tokens in asked:
        clock.now += pause
        if refusal(shares[replica % replicas], tokens) is None:
            admitted += tokens
    minutes = (clock.now - 100) / 60
    share = max(1, limit / replicas)
    # Each replica: a full share, its refill, and the debt of one request above the share.
    assert admitted <= replicas * share * (1 + minutes) + replicas * max(0, limit - share) + 1e-6


async def test_headers_report_the_rest_and_a_refusal_when_to_retry(edge: Serve, keys: Keys, backend: Any) -> None:
    mine, other = keys.add("mine", requests_per_minute=3, tokens_per_minute=600), keys.add("other")
    async with edge() as client:
        for stream in (False, True):
            answer = await client.post(PATH, json=TEXT | {"stream": stream}, headers=mine)
            assert answer.headers["x-ratelimit-limit-requests"] == "3"
        assert answer.headers["x-ratelimit-remaining-requests"] == "1"
        assert answer.headers["x-ratelimit-limit-tokens"] == "600"
        assert answer.headers["x-ratelimit-remaining-tokens"] == "580"  # 2 x (4 + 6)
        assert (await client.post("/tokenize", json={"prompt": "a"}, headers=mine)).status_code == 200
        answer = await client.post(PATH, json=TEXT, headers=mine)
        error = error_of(answer, 429)
        assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
        assert answer.headers["Retry-After"] == "20"
        answer = await client.post(PATH, json=TEXT, headers=other)
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
    assert len(backend.seen) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_only_used_tokens_are_charged(edge: Serve, keys: Keys, backend: Any, stream: bool) -> None:
    mine = keys.add("mine", tokens_per_minute=1000)
    long = TEXT | {"max_tokens": 240, "stream": stream, "ignore_eos": False, "n": 2}  # EOS comes long before
    async with edge() as client:
        answer = await client.post(PATH, json=long, headers=mine)
        used = 4 + 2 * len(backend.ids_for(backend.seen[0].params))
        assert answer.headers["x-ratelimit-remaining-tokens"] == str(1000 - (4 + 2 * 240 if stream else used))
        backend.is_full = True
        error_of(await client.post(PATH, json=long, headers=mine), 429)
        backend.is_full = False
        for fields in ({"n": 5}, {"max_tokens": 0}):
            assert error_of(await client.post(PATH, json=long | fields, headers=mine), 400)["param"] == "max_tokens"
        left = await client.get("/v1/models", headers=mine)
        assert left.headers["x-ratelimit-remaining-tokens"] == str(1000 - used)  # refused requests used nothing


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_request_counts_until_its_stream_ends(
    edge: Serve, keys: Keys, backend: Any, is_cancelled: bool
) -> None:
    mine = keys.add("mine", max_concurrent=2)
    backend.holds_after = 3
    async with edge() as client:
        body = TEXT | {"max_tokens": 100, "stream": True}
        tasks = [asyncio.create_task(client.post(PATH, json=body, headers=mine)) for _ in range(2)]
        await wait_until_async(lambda: len(backend.running) == 2)
        refused = await client.post(PATH, json=TEXT, headers=mine)
        assert error_of(refused, 429)["code"] == "rate_limit_exceeded"
        if is_cancelled:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        backend.holds_after = None
        if not is_cancelled:
            assert [answer.status_code for answer in await asyncio.gather(*tasks)] == [200, 200]
        assert (await client.post(PATH, json=TEXT, headers=mine)).status_code == 200
