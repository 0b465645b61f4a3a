"""Large bodies: refused before they cost anything, handled in threads, held in bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from httpx import AsyncClient
from starlette.requests import Request

from app.access.caller import StatusError
from app.api.errors import MAX_MESSAGE
from app.api.requests import bodies
from app.api.requests.bodies import Bodies
from app.api.requests.parsing import SMALL
from engine.errors import OverloadedError
from tests.app.conftest import ScriptedBackend, app_with_context, client_of, error_of
from tests.support.waiting import LIMIT_S, wait_until_async

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MEBI = 2**20
MESSAGE = b'{"role":"user","content":"a"}'


def chat(messages: bytes, more: bytes = b"") -> tuple[str, bytes]:
    return CHAT, b'{"model":"tiny"' + more + b',"messages":[' + messages + b"]}"


def text(prompt: bytes, more: bytes = b"") -> tuple[str, bytes]:
    return TEXT, b'{"model":"tiny"' + more + b',"prompt":' + prompt + b"}"


def many(item: bytes, n: int) -> bytes:
    return b",".join([item] * n)


def numbered(n: int) -> bytes:
    return b",".join(b'"%d":1' % i for i in range(n))


LONG = b"x" * MEBI
PARTS = many(b'{"type":"text","text":""}', 30_000)
TOO_LARGE = {
    "messages": (chat(many(MESSAGE, 4097)), "at most 4096 items"),
    "wrong messages": (chat(many(b"{}", MEBI)), "more than 65536 strings"),
    "parts": (chat(b'{"role":"user","content":[' + PARTS + b"]}"), "more than 65536 strings"),
    "keys": (chat(b'{"role":"user","content":"a",' + many(b'"k":1', 65) + b"}"), "unknown field"),
    "many keys": (chat(b'{"role":"user",' + numbered(65) + b"}"), "unknown field 'messages[0].0'"),
    "a message": (chat(b'{"role":"user","content":"' + LONG + b'"}'), "no text of more than"),
    "a role": (chat(b'{"role":"' + LONG + b'","content":""}'), "must be 'system'"),
    "depth": (chat(b"[" * 60_000), "not valid JSON"),
    "ids": (text(b"[" + many(b"5", 2 * MEBI - 50) + b"]"), "more than 16384 numbers"),
    "digits": (text(b"[" + b"9" * SMALL + b"]"), "more than 128 digits"),
    "escapes": (text(b'"' + b'\\"' * MEBI + b'"'), "no text of more than"),
    "a biased": (text(b'"a"', b',"logit_bias":{"5":' + b"[" * 500 + b"]" * 500 + b"}"), "from -100 to 100"),
    "a list": (text(b'"a"', b',"top_k":[' + many(b"[]", 60_000) + b"]"), "it must be an integer"),
    "a method": (text(b'"a"', b',"speculative":{"method":"' + LONG + b'"}'), "at most 256"),
    "a text": (("/tokenize", b'{"prompt":"' + LONG + b'"}'), "no text of more than"),
    "tokens": (("/detokenize", b'{"tokens":[' + many(b"5", 257) + b"]}"), "context length is 256"),
    "strings": (("/detokenize", b'{"tokens":[' + many(b'""', MEBI) + b"]}"), "more than 65536 strings"),
}
CANNOT_FIT = {"a message", "ids", "escapes", "a text", "tokens"}


@pytest.mark.parametrize("kind", TOO_LARGE)
async def test_an_oversized_part_of_a_body_is_refused_in_few_words(client: AsyncClient, kind: str) -> None:
    (path, body), words = TOO_LARGE[kind]
    response = await client.post(path, content=body, headers={"content-type": "application/json"})
    error = error_of(response, 400)
    assert words in error["message"]
    assert len(response.content) < MAX_MESSAGE
    assert (error["code"] == "context_length_exceeded") == (kind in CANNOT_FIT)


async def test_the_largest_prompts_and_strings_full_of_brackets_are_accepted(backend: ScriptedBackend) -> None:
    prompts = [[5] * 255] * 64
    brackets = '[{"a\\": [1,2]}, \\\\' * 9000  # more brackets than values are allowed
    async with client_of(app_with_context(backend, 500_000)) as client:
        for prompt in (prompts, brackets):
            response = await client.post(TEXT, json={"model": "tiny", "prompt": prompt, "max_tokens": 1})
            assert response.status_code == 200, response.text
    assert [request.prompt for request in backend.seen[:64]] == prompts
    assert backend.tokenizer.decode(backend.seen[64].prompt[1:]) == brackets


def request_of(chunks: AsyncIterator[bytes], **headers: str) -> Request:
    async def receive() -> dict[str, object]:
        try:
            return {"type": "http.request", "body": await anext(chunks), "more_body": True}
        except StopAsyncIteration:
            return {"type": "http.request", "body": b"", "more_body": False}

    fields = {"content-type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    return Request({"type": "http", "method": "POST", "headers": raw}, receive)


async def sent(n_bytes: int) -> AsyncIterator[bytes]:
    yield b"x" * n_bytes


async def test_large_bodies_wait_for_room_and_small_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "HELD", 2)
    monkeypatch.setattr(bodies, "WAIT_S", LIMIT_S)
    limit = 4 * SMALL
    work = Bodies(limit)
    entered: list[int] = []
    leave = asyncio.Event()

    async def hold(n_bytes: int) -> None:
        async with work.read(request_of(sent(n_bytes), content_length=str(n_bytes))) as body:
            entered.append(len(body))
            if n_bytes > SMALL:
                await leave.wait()

    for _ in range(2):  # the second time shows that all room was returned
        entered.clear()
        leave.clear()
        first = [asyncio.create_task(hold(limit - i)) for i in range(2)]
        await wait_until_async(lambda: len(entered) == 2)
        third = asyncio.create_task(hold(limit - 2))
        await hold(SMALL)
        assert entered == [limit, limit - 1, SMALL]
        leave.set()
        await asyncio.gather(*first, third)
        assert entered[3:] == [limit - 2]


async def test_a_body_is_refused_without_room_and_after_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "HELD", 1)
    monkeypatch.setattr(bodies, "WAIT_S", 0)
    work = Bodies(2 * SMALL)

    async def never() -> AsyncIterator[bytes]:
        yield b"x" * (SMALL + 1)
        await asyncio.Event().wait()

    async with work.read(request_of(sent(2 * SMALL))):
        with pytest.raises(OverloadedError):
            async with work.read(request_of(sent(2 * SMALL))):
                pass
    with monkeypatch.context() as patch:
        patch.setattr(bodies, "READ_S", 0)
        with pytest.raises(StatusError) as caught:
            async with work.read(request_of(never())):
                pass
    assert caught.value.status == 408
    async with work.read(request_of(sent(2 * SMALL))) as body:
        assert len(body) == 2 * SMALL
