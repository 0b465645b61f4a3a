"""A bad request gets the right status and names its field in OpenAI's form; other requests are not disturbed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from httpx import AsyncClient

from deployments.submission.protocol import Submit, decode_commands, encode, encode_message
from engine.errors import RequestError
from tests.app.conftest import ScriptedBackend, error_of
from tests.support.tiny_models import tiny_tokenizer

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
TEXT = {"model": "tiny", "prompt": "hello"}
CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
JSON = {"content-type": "application/json; charset=utf-8"}
[ONE_TOKEN] = tiny_tokenizer(400).encode("a", add_special_tokens=False)


def predicted(content: Any) -> dict[str, Any]:
    return {"prediction": {"type": "content", "content": content}}


BAD_FIELDS: list[tuple[str, dict[str, Any], str, str]] = [  # path, fields, param, words of the message
    (CHAT_PATH, {"temperature": 2.5}, "temperature", "temperature is 2.5; it must be at most 2"),
    (CHAT_PATH, {"temperature": "hot"}, "temperature", "number"),
    (CHAT_PATH, {"top_p": 0}, "top_p", "greater than 0"),
    (CHAT_PATH, {"top_k": 2**64}, "top_k", "less than 2147483648"),
    (CHAT_PATH, {"max_tokens": 0}, "max_tokens", "at least 1"),
    (CHAT_PATH, {"max_tokens": 1.5}, "max_tokens", "must be an integer"),
    (CHAT_PATH, {"max_tokens": 5, "min_tokens": 6}, "min_tokens", "at most max_tokens"),
    (CHAT_PATH, {"n": 17}, "n", "at most 16"),
    (CHAT_PATH, {"seed": 2**64}, "seed", "18446744073709551616"),
    (CHAT_PATH, {"stop": [""]}, "stop[0]", "at least 1 character"),
    (CHAT_PATH, {"logit_bias": {"5000": 1}}, "logit_bias", "0 to 360"),
    (CHAT_PATH, {"stop_token_ids": [400]}, "stop_token_ids", "400"),
    (CHAT_PATH, {"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
    (CHAT_PATH, {"stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
    (CHAT_PATH, {"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown field"),
    (CHAT_PATH, {"speculative": {"max_nodes": 0}}, "speculative.max_nodes", "at least 1"),
    (CHAT_PATH, {"speculative": {"max_nodes": 65}}, "speculative.max_nodes", "65; this server drafts at most 64 nodes"),
    (CHAT_PATH, {"cache_salt": ""}, "cache_salt", "must have 1 to 256 characters"),
    (CHAT_PATH, {"frobnicate": 1}, "frobnicate", "unknown field 'frobnicate'"),
    (
        CHAT_PATH,
        {"speculative": {"method": "draft-model"}},
        "speculative.method",
        "method 'draft-model' is not among those that this server allows: autoregressive, pld, lost",
    ),
    (CHAT_PATH, {"max_token": 1}, "max_token", "unknown field 'max_token'; did you mean max_tokens?"),
    (CHAT_PATH, {"speculative": {"metod": "pld"}}, "speculative.metod", "did you mean speculative.method?"),
    (CHAT_PATH, {"method": "pld"}, "speculative.method", "did you mean speculative.method?"),
    (CHAT_PATH, {"messages": []}, "messages", "it must have at least 1 item"),
    (CHAT_PATH, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "'assistant'"),
    (CHAT_PATH, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content", "text"),
    (CHAT_PATH, {"messages": [{"role": "user", "content": "refuse me"}]}, "messages", "no such turn"),
    (TEXT_PATH, {"prompt": "", "add_special_tokens": False}, "prompt", "must have at least one"),
    (TEXT_PATH, {"max_tokens": 0}, "max_tokens", "max_tokens is 0; it must be at least 1"),
    (TEXT_PATH, {"prompt": [5, 2**31]}, "prompt", ""),
    (TEXT_PATH, {"prompt": [5, -(2**64)]}, "prompt", ""),
    ("/detokenize", {"tokens": [5, 2**64]}, "tokens[1]", "less than 2147483648"),
    (TEXT_PATH, {"prompt": [5, 400]}, "prompt", "0 to 360"),
    (TEXT_PATH, {"prompt": ["a"] * 30, "n": 3}, "n", "90 choices"),
    (CHAT_PATH, {"prompt_logprobs": 1, "stream": True}, "stream", "goes without log-probabilities of prompts"),
    (TEXT_PATH, {"prompt_logprobs": 21}, "prompt_logprobs", "at most 20"),
    (TEXT_PATH, {"n": 2, "speculative": {"trace": True}}, "n", "at most 1 with speculative.trace"),
    (TEXT_PATH, {"suffix": "x"}, "suffix", "does not support"),
    (TEXT_PATH, {"best_of": 3}, "best_of", "does not support"),
    ("/tokenize", {"messages": CHAT["messages"]}, "prompt", "or messages"),
    ("/detokenize", {"tokens": [9999]}, "tokens", "9999"),
    (TEXT_PATH, {"metadata": {str(i): "" for i in range(17)}}, "metadata", "at most 16"),
    (TEXT_PATH, {"metadata": {"a": "x" * 513}}, "metadata.a", "512"),
    (TEXT_PATH, {"allowed_token_ids": []}, "allowed_token_ids", ""),
    (TEXT_PATH, {"allowed_token_ids": [5] * 1025}, "allowed_token_ids", "1024"),
    (TEXT_PATH, {"allowed_token_ids": [2], "min_tokens": 1}, "allowed_token_ids", ""),
    (TEXT_PATH, {"allowed_token_ids": [ONE_TOKEN], "bad_words": ["a"]}, "allowed_token_ids", ""),
    (TEXT_PATH, {"bad_words": ["x" * 61]}, "bad_words[0]", "60"),
    (TEXT_PATH, {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "0"),
    (CHAT_PATH, {"prediction": "x"}, "prediction", "must be an object"),
    (CHAT_PATH, {"prediction": {"type": "tokens", "content": "x"}}, "prediction.type", "'content'"),
    (CHAT_PATH, predicted("x") | {"speculative": {"method": "pld"}}, "speculative.method", "prediction+suffix"),
    (CHAT_PATH, predicted([{"type": "image_url", "image_url": ""}]), "prediction.content", "parts"),
    (CHAT_PATH, predicted([{"type": "text", "text": 3}]), "prediction.content", "string"),
    (CHAT_PATH, predicted("word " * 300), "prediction", "256"),
    (CHAT_PATH, predicted("x" * 100_000), "prediction", "256"),
]


@pytest.mark.parametrize(("path", "fields", "param", "words"), BAD_FIELDS, ids=lambda v: str(v)[:40])
async def test_a_wrong_field_is_refused_by_name(
    client: AsyncClient, backend: ScriptedBackend, path: str, fields: dict[str, Any], param: str, words: str
) -> None:
    base = {CHAT_PATH: CHAT, TEXT_PATH: TEXT, "/tokenize": {"prompt": "x"}, "/detokenize": {}}[path]
    error = error_of(await client.post(path, json=base | fields), 400)
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    assert error["param"] == param
    assert not backend.seen


@pytest.mark.parametrize(
    "number", [2**31, -(2**31), 2**64, -(10**400), 10**400], ids=["2^31", "-2^31", "2^64", "-10^400", "10^400"]
)
async def test_integers_are_refused_or_reach_the_router(
    client: AsyncClient, backend: ScriptedBackend, number: int
) -> None:
    names = ("max_tokens", "max_completion_tokens", "min_tokens", "top_k", "seed", "n", "priority", "prompt_logprobs")
    nested: list[dict[str, Any]] = [{"stop_token_ids": [number]}, {"logit_bias": {str(number): 1}}]
    for fields in (*({name: number} for name in names), *nested, {"speculative": {"max_nodes": number}}):
        response = await client.post(CHAT_PATH, json=CHAT | fields)
        if response.status_code != 200:
            error_of(response, 400)
    for request in backend.seen:
        assert decode_commands(encode([encode_message(Submit(0, request))])) == [Submit(0, request)]


@pytest.mark.parametrize("body", [b"{", b"", b"[]", b'"x"', b"\xff", b'{"a": NaN}', b"[" * 50_000, b'{"a":"\\ud800"}'])
async def test_malformed_json_is_400(client: AsyncClient, body: bytes) -> None:
    assert "JSON" in error_of(await client.post(CHAT_PATH, content=body, headers=JSON), 400)["message"]


async def test_a_compressed_body_is_415(client: AsyncClient, backend: ScriptedBackend) -> None:
    for coding, status in (("gzip", 415), ("br, gzip", 415), ("identity", 200)):
        headers = {"content-encoding": coding}
        response = await client.post(CHAT_PATH, content=json.dumps(CHAT), headers=JSON | headers)
        assert response.status_code == status
        if status == 415:
            assert error_of(response, 415)["message"] == f"Content-Encoding is {coding}; send the body uncompressed"
    assert len(backend.seen) == 1


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT_PATH, {"max_tokens": 300}),
        (CHAT_PATH, {"messages": [{"role": "user", "content": "fox " * 300}]}),
        (CHAT_PATH, {"messages": [{"role": "user", "content": "x" * 100_000}]}),
        (CHAT_PATH, predicted("word " * 300)),
        (TEXT_PATH, {"prompt": [5] * 300}),
        (TEXT_PATH, {"prompt": [5] * 100_000}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 300}),
    ],
    ids=["limit", "tokens", "characters", "prediction", "ids", "numbers", "responses"],
)
async def test_an_exceeded_context_has_the_words_by_which_clients_know_it(
    client: AsyncClient, path: str, fields: dict[str, Any]
) -> None:
    base = {CHAT_PATH: CHAT, TEXT_PATH: TEXT}.get(path, {"model": "tiny"})
    error = error_of(await client.post(path, json=base | fields), 400)
    assert error["code"] == "context_length_exceeded"
    assert "this model's maximum context length is" in error["message"].lower(), "litellm looks for it"


async def test_unknown_content_types_routes_and_methods_have_the_same_form(client: AsyncClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = await client.post(CHAT_PATH, content=json.dumps(CHAT), headers={"content-type": kind})
        assert error_of(response, 415)["code"] == "unsupported_media_type"
    assert error_of(await client.get("/v1/nothing"), 404)["code"] == "not_found"
    response = await client.get(CHAT_PATH)
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert "POST" in response.headers["allow"]


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_of_the_engine_have_their_status_whole_and_streamed(
    client: AsyncClient, backend: ScriptedBackend, stream: bool
) -> None:
    cases: list[tuple[dict[str, Any], int, str, str | None]] = [
        ({"model": "gpt-9"}, 404, "model_not_found", "model"),
        ({"speculative": {"method": "nonsense"}}, 400, "unknown_method", "speculative.method"),
        ({"max_tokens": 250}, 400, "context_length_exceeded", "messages"),
        ({"messages": [{"role": "user", "content": "fox " * 300}]}, 400, "context_length_exceeded", "messages"),
        ({"speculative": {"method": "lost"}}, 503, "target_lost", None),
        ({"n": 2, "speculative": {"method": "lost"}}, 503, "target_lost", None),
    ]
    for fields, status, code, param in cases:
        error = error_of(await client.post(CHAT_PATH, json=CHAT | fields | {"stream": stream}), status)
        assert (error["code"], error["param"]) == (code, param)
    backend.is_full = True
    response = await client.post(CHAT_PATH, json=CHAT | {"stream": stream})
    assert error_of(response, 429)["type"] == "rate_limit_error"
    assert response.headers["retry-after"] == "2"
    assert not backend.running


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_raised_on_submission_are_named_or_hidden(
    client: AsyncClient,
    backend: ScriptedBackend,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,
) -> None:
    async def fail(*args: object, **options: object) -> object:
        raise errors.pop()

    errors = [ZeroDivisionError("secret"), RequestError("max_nodes is wrong", "max_nodes")]
    monkeypatch.setattr(backend, "submit", fail)
    refused = await client.post(CHAT_PATH, json=CHAT | {"stream": stream})
    assert error_of(refused, 400)["param"] == "speculative.max_nodes"  # as clients write it
    failed = await client.post(CHAT_PATH, json=CHAT | {"stream": stream})
    assert error_of(failed, 500)["code"] == "internal_error"
    assert "secret" not in failed.text
    assert "secret" in caplog.text


async def send_bad_requests(client: AsyncClient) -> list[int]:
    """One of each kind, concurrently; their statuses."""

    async def huge() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * 1_000_000

    requests = [
        client.post(CHAT_PATH, content=b"{", headers=JSON),
        client.post(CHAT_PATH, content=b"x" * 10_000_000, headers=JSON),
        client.post(CHAT_PATH, content=huge(), headers=JSON),  # chunked, without a Content-Length
        client.post(CHAT_PATH, json=CHAT | {"model": "gpt-9"}),
        client.post(CHAT_PATH, json=CHAT | {"max_tokens": 100_000}),
        client.post(CHAT_PATH, content=b"{}", headers={"content-type": "text/plain"}),
        client.get("/v1/nothing"),
    ]
    return [response.status_code for response in await asyncio.gather(*requests)]


async def test_bad_requests_leave_a_running_stream_alone(server: str, backend: ScriptedBackend) -> None:
    backend.holds_after = 1
    body = CHAT | {"temperature": 0, "stream": True}
    async with (
        AsyncClient(base_url=server, timeout=None) as client,
        client.stream("POST", CHAT_PATH, json=body) as stream,
    ):
        lines = stream.aiter_lines()
        first = await anext(lines)
        statuses = await send_bad_requests(client)
        backend.holds_after = None
        rest = [line async for line in lines if line]
    assert statuses == [400, 413, 413, 404, 400, 415, 404]
    assert rest[-1] == "data: [DONE]"
    chunks = [json.loads(line[6:]) for line in [first, *rest[:-1]]]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == backend.answer
