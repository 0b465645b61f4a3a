"""Bad input gets the right status in OpenAI's form, and does not disturb other requests."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from engine.errors import RequestError

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
TEXT = {"model": "tiny", "prompt": "hello"}
CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"

BAD_FIELDS = [
    # path, fields, param, words of the message
    (CHAT_PATH, {"temperature": 2.5}, "temperature", ["temperature", "2.5", "at most 2"]),
    (CHAT_PATH, {"temperature": "hot"}, "temperature", ["'hot'", "number"]),
    (CHAT_PATH, {"top_p": 0}, "top_p", ["top_p is 0", "greater than 0"]),
    (CHAT_PATH, {"top_k": -2}, "top_k", ["at least -1"]),
    (CHAT_PATH, {"top_k": 2**64}, "top_k", ["less than 2147483648"]),
    (CHAT_PATH, {"min_p": 1.5}, "min_p", ["1.5"]),
    (CHAT_PATH, {"repetition_penalty": 1e-300}, "repetition_penalty", ["at least 0.01"]),
    (CHAT_PATH, {"presence_penalty": 3}, "presence_penalty", ["at most 2"]),
    (CHAT_PATH, {"max_tokens": 0}, "max_tokens", ["at least 1"]),
    (CHAT_PATH, {"max_tokens": 1.5}, "max_tokens", ["1.5", "must be an integer"]),
    (CHAT_PATH, {"max_tokens": True}, "max_tokens", ["integer"]),
    (CHAT_PATH, {"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", ["differ"]),
    (CHAT_PATH, {"max_tokens": 5, "min_tokens": 6}, "min_tokens", ["at most max_tokens"]),
    (CHAT_PATH, {"n": 17}, "n", ["at most 16"]),
    (CHAT_PATH, {"seed": 2**64}, "seed", ["64-bit"]),
    (CHAT_PATH, {"seed": "7"}, "seed", ["integer"]),
    (CHAT_PATH, {"stop": [""]}, "stop", ["1 to 1024 characters"]),
    (CHAT_PATH, {"stop": ["x"] * 17}, "stop", ["at most 16"]),
    (CHAT_PATH, {"stop": 5}, "stop", ["string"]),
    (CHAT_PATH, {"logit_bias": {"the": 1}}, "logit_bias", ["token ids"]),
    (CHAT_PATH, {"logit_bias": {"5": 101}}, "logit_bias", ["-100 to 100"]),
    (CHAT_PATH, {"logit_bias": {"5000": 1}}, "logit_bias", ["5000", "0 to 360"]),
    (CHAT_PATH, {"stop_token_ids": [400]}, "stop_token_ids", ["400"]),
    (CHAT_PATH, {"top_logprobs": 2}, "top_logprobs", ["needs logprobs"]),
    (CHAT_PATH, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", ["at most 20"]),
    (CHAT_PATH, {"stream_options": {"include_usage": True}}, "stream_options", ["needs stream"]),
    (CHAT_PATH, {"stream": True, "stream_options": {"x": 1}}, "stream_options.x", ["unknown field"]),
    (CHAT_PATH, {"verification": "magic"}, "verification", ["'coupled' or 'rejection'"]),
    (CHAT_PATH, {"speculative": {"max_nodes": 0}}, "speculative.max_nodes", ["at least 1"]),
    (CHAT_PATH, {"speculative": {"depth": 3}}, "speculative.depth", ["unknown field"]),
    (CHAT_PATH, {"cache_salt": ""}, "cache_salt", ["must have 1 to 256 characters"]),
    (CHAT_PATH, {"cache_salt": "x" * 257}, "cache_salt", ["must have 1 to 256 characters"]),
    (CHAT_PATH, {"cache_salt": 5}, "cache_salt", ["5", "string"]),
    (CHAT_PATH, {"frobnicate": 1}, "frobnicate", ["unknown field"]),
    (CHAT_PATH, {"tools": [{"type": "function"}]}, "tools[0].function", ["missing"]),
    (CHAT_PATH, {"messages": []}, "messages", ["it must have at least 1 item"]),
    (CHAT_PATH, {"messages": [5]}, "messages[0]", ["it must be an object"]),
    (CHAT_PATH, {"messages": "hi"}, "messages", ["list"]),
    (CHAT_PATH, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", ["'robot'", "'assistant'"]),
    (CHAT_PATH, {"messages": [{"role": "user"}]}, "messages[0].content", ["missing"]),
    (CHAT_PATH, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content", ["text"]),
    (CHAT_PATH, {"messages": [{"role": "user", "content": "refuse me"}]}, "messages", ["no such turn"]),
    (TEXT_PATH, {"prompt": ""}, "prompt", ["empty"]),
    (TEXT_PATH, {"prompt": []}, "prompt", ["must be"]),
    (TEXT_PATH, {"prompt": ["a", [1]]}, "prompt", ["must be"]),
    (TEXT_PATH, {"prompt": [5, -1]}, "prompt", ["-1"]),
    (TEXT_PATH, {"prompt": [5, 400]}, "prompt", ["400", "0 to 360"]),
    (TEXT_PATH, {"prompt": ["a"] * 30, "n": 3}, "n", ["90 choices"]),
    (TEXT_PATH, {"echo": True, "logprobs": 1, "stream": True}, "stream", ["goes without log-probabilities of prompts"]),
    (CHAT_PATH, {"prompt_logprobs": 1, "stream": True}, "stream", ["goes without log-probabilities of prompts"]),
    (TEXT_PATH, {"prompt_logprobs": 21}, "prompt_logprobs", ["at most 20"]),
    (TEXT_PATH, {"suffix": "x"}, "suffix", ["does not support"]),
    (TEXT_PATH, {"best_of": 3}, "best_of", ["does not support"]),
    (TEXT_PATH, {"logprobs": True}, "logprobs", ["integer"]),
    ("/tokenize", {"messages": CHAT["messages"]}, "prompt", ["or messages"]),
    ("/detokenize", {"tokens": [9999]}, "tokens", ["9999"]),
]


def error_of(response: httpx.Response, status: int) -> dict:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(("path", "fields", "param", "words"), BAD_FIELDS, ids=lambda v: str(v)[:40])
async def test_a_wrong_field_is_named_with_what_would_be_right(client, path, fields, param, words) -> None:
    base = {CHAT_PATH: CHAT, TEXT_PATH: TEXT, "/tokenize": {"prompt": "x"}, "/detokenize": {}}[path]
    error = error_of(await client.post(path, json=base | fields), 400)
    assert error["type"] == "invalid_request_error"
    for word in words:
        assert word in error["message"]
    assert error["param"] == param


@pytest.mark.parametrize("body", [b"{", b"", b"[]", b'"x"', b"\xff", b'{"a": NaN}', b"[" * 50_000, b'{"a":"\\ud800"}'])
async def test_malformed_json_is_400(client, body: bytes) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    error = error_of(await client.post(CHAT_PATH, content=body, headers=headers), 400)
    assert "JSON" in error["message"]


async def test_other_content_types_are_415(client) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = await client.post(CHAT_PATH, content=json.dumps(CHAT), headers={"content-type": kind})
        assert error_of(response, 415)["code"] == "unsupported_media_type"


async def test_unknown_routes_and_methods_have_the_same_form(client) -> None:
    assert error_of(await client.get("/v1/nothing"), 404)["code"] == "not_found"
    response = await client.get(CHAT_PATH)
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert "POST" in response.headers["allow"]


@pytest.mark.parametrize("stream", [False, True])
async def test_engine_errors_have_their_status_streamed_or_not(client, backend, stream: bool) -> None:
    async def post(**fields: object) -> httpx.Response:
        return await client.post(CHAT_PATH, json=CHAT | fields | {"stream": stream})

    assert error_of(await post(model="gpt-9"), 404)["code"] == "model_not_found"
    error = error_of(await post(speculative={"method": "nonsense"}), 400)
    assert (error["code"], error["param"]) == ("unknown_method", "speculative.method")
    error = error_of(await post(max_tokens=250), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    error = error_of(await post(messages=[{"role": "user", "content": "fox " * 300}]), 400)
    assert error["code"] == "context_length_exceeded"
    assert error_of(await post(speculative={"method": "lost"}), 503)["code"] == "target_lost"
    assert error_of(await post(n=2, speculative={"method": "lost"}), 503)["code"] == "target_lost"
    backend.is_full = True
    response = await post()
    assert error_of(response, 429)["type"] == "rate_limit_error"
    assert response.headers["retry-after"] == "2"
    assert not backend.running


@pytest.mark.parametrize("param", ["method", "max_nodes"])
async def test_a_field_that_the_router_refuses_is_named_as_clients_write_it(client, backend, param: str) -> None:
    async def refuse(*args: object, **options: object) -> object:
        raise RequestError(f"{param} is wrong", param)

    backend.submit = refuse
    assert error_of(await client.post(CHAT_PATH, json=CHAT), 400)["param"] == f"speculative.{param}"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unexpected_failure_is_500_and_leaks_nothing(client, backend, caplog, stream: bool) -> None:
    async def broken(*args: object, **options: object) -> object:
        raise ZeroDivisionError("secret")

    backend.submit = broken
    response = await client.post(CHAT_PATH, json=CHAT | {"stream": stream})
    assert error_of(response, 500)["code"] == "internal_error"
    assert "secret" not in response.text
    assert "secret" in caplog.text


async def send_bad_input(client: httpx.AsyncClient) -> list[int]:
    """One of each kind, at once; their statuses."""

    async def huge():
        for _ in range(10):
            yield b"x" * 1_000_000

    json_header = {"content-type": "application/json"}
    requests = [
        client.post(CHAT_PATH, content=b"{", headers=json_header),
        client.post(CHAT_PATH, content=b"x" * 10_000_000, headers=json_header),
        client.post(CHAT_PATH, content=huge(), headers=json_header),  # chunked: no Content-Length to look at
        client.post(CHAT_PATH, json=CHAT | {"model": "gpt-9"}),
        client.post(CHAT_PATH, json=CHAT | {"speculative": {"method": "nonsense"}}),
        client.post(CHAT_PATH, json=CHAT | {"max_tokens": 100_000}),
        client.post(CHAT_PATH, json=CHAT | {"temperature": "hot"}),
        client.post(CHAT_PATH, json=CHAT | {"frobnicate": 1}),
        client.post(CHAT_PATH, content=b"{}", headers={"content-type": "text/plain"}),
        client.get("/v1/nothing"),
    ]
    return [response.status_code for response in await asyncio.gather(*requests)]


async def test_bad_input_leaves_a_running_stream_alone(server: str, backend) -> None:
    backend.delay = 0.02
    async with httpx.AsyncClient(base_url=server, timeout=120) as client:
        request = {**CHAT, "temperature": 0, "stream": True}
        async with client.stream("POST", CHAT_PATH, json=request) as response:
            lines = response.aiter_lines()
            first = await anext(lines)
            statuses = await send_bad_input(client)
            rest = [line async for line in lines if line]
    assert statuses == [400, 413, 413, 404, 400, 400, 400, 400, 415, 404]
    assert rest[-1] == "data: [DONE]"
    chunks = [json.loads(line[6:]) for line in [first, *rest[:-1]]]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == backend.answer
