"""What a key may use: requests and tokens a minute, and requests at once; nothing of it is another key's."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.access.errors import AccessError
from app.access.quota import Allowance, Limits
from tests.app.access.conftest import Keys, Serve, error_of

TEXT = {"model": "tiny", "prompt": [5, 6, 7, 8], "max_tokens": 6, "ignore_eos": True, "temperature": 0}
DOOR = "/v1/completions"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def refusal(allowance: Allowance, tokens: int | None = None) -> AccessError | None:
    try:
        if tokens is None:
            allowance.enter()
        else:
            allowance.reserve(tokens)
    except AccessError as error:
        return error
    return None


def test_requests_come_back_evenly_over_the_minute() -> None:
    clock = Clock()
    allowance = Allowance(Limits(requests=6), 1, clock)
    assert [refusal(allowance) for _ in range(6)] == [None] * 6
    refused = refusal(allowance)
    assert refused is not None
    assert (refused.status, refused.headers["Retry-After"]) == (429, "10")
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers["x-ratelimit-reset-requests"] == "60s"
    clock.now += 10
    assert refusal(allowance) is None
    assert refusal(allowance) is not None
    clock.now += 1000  # no more than a minute's worth is ever saved
    assert [refusal(allowance) is None for _ in range(7)] == [True] * 6 + [False]


def test_reserved_tokens_that_were_not_used_come_back() -> None:
    allowance = Allowance(Limits(tokens=100), 1, Clock())
    assert refusal(allowance, 80) is None
    late = refusal(allowance, 30)
    assert late is not None
    assert (late.status, late.headers["Retry-After"]) == (429, "6")
    allowance.give_back(70)
    assert allowance.headers()["x-ratelimit-remaining-tokens"] == "90"
    never = refusal(allowance, 101)
    assert never is not None
    assert (never.status, never.param) == (400, "max_tokens")


def test_a_request_above_a_replicas_share_goes_when_the_share_is_whole_and_leaves_a_debt() -> None:
    clock = Clock()
    allowance = Allowance(Limits(tokens=120), 4, clock)
    assert refusal(allowance, 100) is None
    clock.now += 60 * 3
    assert refusal(allowance, 100) is not None
    clock.now += 60
    assert refusal(allowance, 100) is None


def test_other_limits_count_what_was_used() -> None:
    allowance = Allowance(Limits(requests=10, tokens=100), 1, Clock())
    assert [refusal(allowance) for _ in range(8)] == [None] * 8
    allowance.change(Limits(requests=8, tokens=None, concurrent=8))
    assert allowance.headers()["x-ratelimit-remaining-requests"] == "0"
    assert "x-ratelimit-limit-tokens" not in allowance.headers()
    allowance.change(Limits(requests=20))
    assert allowance.headers()["x-ratelimit-remaining-requests"] == "12"


@given(
    st.integers(1, 5),
    st.integers(1, 500),
    st.lists(st.tuples(st.integers(0, 4), st.floats(0, 30), st.integers(1, 600)), max_size=60),
)
def test_replicas_together_never_give_more_than_the_limit(
    replicas: int, limit: int, asked: list[tuple[int, float, int]]
) -> None:
    clock = Clock()
    shares = [Allowance(Limits(tokens=limit), replicas, clock) for _ in range(replicas)]
    given_out = 0
    for replica, pause, tokens in asked:
        clock.now += pause
        if refusal(shares[replica % replicas], tokens) is None:
            given_out += tokens
    minutes = (clock.now - 100) / 60
    share = max(1, limit / replicas)
    # Full at first; what comes back in the time; and one request that each may owe for.
    assert given_out <= replicas * share * (1 + minutes) + replicas * max(0, limit - share) + 1e-6


async def test_headers_say_what_is_left_and_a_refusal_when_to_ask_again(edge: Serve, keys: Keys, backend: Any) -> None:
    mine, other = keys.add("mine", requests_per_minute=3, tokens_per_minute=600), keys.add("other")
    async with edge() as client:
        for stream in (False, True):
            answer = await client.post(DOOR, json=TEXT | {"stream": stream}, headers=mine)
            assert answer.headers["x-ratelimit-limit-requests"] == "3"
        assert answer.headers["x-ratelimit-remaining-requests"] == "1"
        assert answer.headers["x-ratelimit-limit-tokens"] == "600"
        assert answer.headers["x-ratelimit-remaining-tokens"] == "580"  # two times 4 + 6
        assert (await client.post("/tokenize", json={"prompt": "a"}, headers=mine)).status_code == 200
        answer = await client.post(DOOR, json=TEXT, headers=mine)
        assert (answer.status_code, error_of(answer)["code"]) == (429, "rate_limit_exceeded")
        assert error_of(answer)["type"] == "rate_limit_error"
        assert answer.headers["Retry-After"] == "20"
        answer = await client.post(DOOR, json=TEXT, headers=other)
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
    assert len(backend.seen) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_are_settled_by_what_was_used(edge: Serve, keys: Keys, backend: Any, stream: bool) -> None:
    mine = keys.add("mine", tokens_per_minute=1000)
    long = TEXT | {"max_tokens": 240, "stream": stream, "ignore_eos": False, "n": 2}  # ends by itself, long before

    async def left(client: httpx.AsyncClient) -> int:
        answer = await client.get("/v1/models", headers=mine)
        return int(answer.headers["x-ratelimit-remaining-tokens"])

    async with edge() as client:
        answer = await client.post(DOOR, json=long, headers=mine)
        used = 4 + 2 * len(backend.ids_for(backend.seen[0].params))
        assert answer.headers["x-ratelimit-remaining-tokens"] == str(1000 - (4 + 2 * 240 if stream else used))
        assert await left(client) == 1000 - used
        backend.is_full = True
        assert (await client.post(DOOR, json=long, headers=mine)).status_code == 429
        assert await left(client) == 1000 - used  # a refused request has used nothing
        backend.is_full = False
        too_long = await client.post(DOOR, json=long | {"n": 5}, headers=mine)
        assert (too_long.status_code, error_of(too_long)["param"]) == (400, "max_tokens")
        broken = await client.post(DOOR, json=long | {"max_tokens": 0}, headers=mine)
        assert broken.status_code == 400
        assert await left(client) == 1000 - used


async def test_requests_at_once_are_counted_until_their_streams_end(edge: Serve, keys: Keys, backend: Any) -> None:
    mine = keys.add("mine", max_concurrent=2)
    backend.delay = 0.02
    async with edge() as client:
        body = TEXT | {"max_tokens": 100, "stream": True}
        tasks = [asyncio.create_task(client.post(DOOR, json=body, headers=mine)) for _ in range(2)]
        while len(backend.running) < 2:
            await asyncio.sleep(0.001)
        refused = await client.post(DOOR, json=TEXT, headers=mine)
        assert (refused.status_code, error_of(refused)["code"]) == (429, "rate_limit_exceeded")
        assert [answer.status_code for answer in await asyncio.gather(*tasks)] == [200, 200]
        assert (await client.post(DOOR, json=TEXT, headers=mine)).status_code == 200
        tasks = [asyncio.create_task(client.post(DOOR, json=body, headers=mine)) for _ in range(2)]
        while len(backend.running) < 2:
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (await client.post(DOOR, json=TEXT, headers=mine)).status_code == 200


async def test_openais_client_sees_its_own_errors(edge: Serve, keys: Keys) -> None:
    keys.add("mine", requests_per_minute=1)
    async with edge() as client:

        def with_key(key: str) -> openai.AsyncOpenAI:
            return openai.AsyncOpenAI(base_url="http://edge/v1", api_key=key, max_retries=0, http_client=client)

        with pytest.raises(openai.AuthenticationError, match="not known"):
            await with_key("sk-other").models.list()
        mine = with_key(keys.keys["mine"])
        with pytest.raises(openai.PermissionDeniedError, match="priority is -1"):
            await mine.completions.create(model="tiny", prompt="a", extra_body={"priority": -1})
        with pytest.raises(openai.RateLimitError, match="1 requests a minute"):
            await mine.completions.create(model="tiny", prompt="a")
