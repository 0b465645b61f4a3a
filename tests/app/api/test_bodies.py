"""Large bodies: refused before they cost anything, worked on in threads, held in bounded memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
from starlette.requests import Request

from app.api.application import create_app
from app.api.errors import MAX_MESSAGE, ApiError
from app.api.http import Api
from app.api.requests import bodies
from app.api.requests.bodies import Bodies
from app.api.requests.parsing import SMALL
from app.api.service import Settings
from app.demo.paths import DEMO_TARGET
from app.inputs.tokenizers import load_tokenizer
from engine.errors import OverloadedError

CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
MEBI = 2**20
MESSAGE = b'{"role":"user","content":"a"}'
JSON = {"content-type": "application/json"}


def chat(messages: bytes, more: bytes = b"") -> bytes:
    return b'{"model":"tiny"' + more + b',"messages":[' + messages + b"]}"


def text(prompt: bytes, more: bytes = b"") -> bytes:
    return b'{"model":"tiny"' + more + b',"prompt":' + prompt + b"}"


def many(item: bytes, n: int) -> bytes:
    return b",".join([item] * n)


TOO_LARGE = {
    "messages": (CHAT_PATH, chat(many(MESSAGE, 4097)), "at most 4096 items"),
    "tiny messages": (CHAT_PATH, chat(many(MESSAGE, 100_000)), "more than 65536 strings"),
    "wrong messages": (CHAT_PATH, chat(many(b"{}", MEBI)), "more than 65536 strings"),
    "parts": (CHAT_PATH, chat(b'{"role":"user","content":[' + many(b'{"type":"text","text":""}', 30_000) + b"]}"),
              "more than 65536 strings"),
    "keys": (CHAT_PATH, chat(b'{"role":"user","content":"a",' + many(b'"k":1', 65) + b"}"), "unknown field"),
    "many keys": (CHAT_PATH, chat(b'{"role":"user",' + b",".join(b'"%d":1' % i for i in range(65)) + b"}"),
                  "messages[0] has 66 fields"),
    "a name": (CHAT_PATH, chat(MESSAGE, b',"' + b"x" * MEBI + b'":1'), "unknown field 'xxx"),
    "a message": (CHAT_PATH, chat(b'{"role":"user","content":"' + b"fox" * MEBI + b'"}'), "no text of more than"),
    "a role": (CHAT_PATH, chat(b'{"role":"' + b"x" * MEBI + b'","content":""}'), "must be 'system'"),
    "depth": (CHAT_PATH, chat(b"[" * 60_000), "not valid JSON"),
    "prompts": (TEXT_PATH, text(b"[" + many(b"[5]", 65) + b"]"), "at most 64"),
    "lists": (TEXT_PATH, text(b"[" + many(b"[]", MEBI) + b"]"), "more than 65536 strings"),
    "ids": (TEXT_PATH, text(b"[" + many(b"5", 2 * MEBI - 50) + b"]"), "more than 16384 numbers"),
    "digits": (TEXT_PATH, text(b"[" + b"9" * SMALL + b"]"), "more than 128 digits"),
    "escapes": (TEXT_PATH, text(b'"' + b'\\"' * MEBI + b'"'), "no text of more than"),
    "bias": (TEXT_PATH, text(b'"a"', b',"logit_bias":{' + b",".join(b'"%d":1' % i for i in range(1025)) + b"}"),
             "at most 1024 entries"),
    "a biased": (TEXT_PATH, text(b'"a"', b',"logit_bias":{"5":' + b"[" * 500 + b"]" * 500 + b"}"), "from -100 to 100"),
    "a list": (TEXT_PATH, text(b'"a"', b',"top_k":[' + many(b"[]", 60_000) + b"]"), "it must be an integer"),
    "a user": (TEXT_PATH, text(b'"a"', b',"user":"' + b"x" * MEBI + b'"'), "at most 256 characters"),
    "a method": (TEXT_PATH, text(b'"a"', b',"speculative":{"method":"' + b"x" * MEBI + b'"}'), "at most 256"),
    "a text": ("/tokenize", b'{"prompt":"' + b"x" * MEBI + b'"}', "no text of more than"),
    "tokens": ("/detokenize", b'{"tokens":[' + many(b"5", 257) + b"]}", "at most 256"),
    "all tokens": ("/detokenize", b'{"tokens":[' + many(b"5", MEBI) + b"]}", "more than 256 numbers"),
    "strings": ("/detokenize", b'{"tokens":[' + many(b'""', MEBI) + b"]}", "more than 65536 strings"),
}  # fmt: skip
CANNOT_FIT = {"a message", "ids", "escapes", "a text", "tokens", "all tokens"}


@pytest.mark.parametrize("kind", TOO_LARGE)
async def test_too_much_of_anything_is_refused_in_few_words(client, kind: str) -> None:
    path, body, words = TOO_LARGE[kind]
    response = await client.post(path, content=body, headers=JSON)
    assert response.status_code == 400, response.text[:200]
    error = response.json()["error"]
    assert words in error["message"]
    assert len(response.content) < MAX_MESSAGE
    assert (error["code"] == "context_length_exceeded") == (kind in CANNOT_FIT)


async def test_the_largest_prompts_are_taken(client, backend) -> None:
    prompts = [[5] * 255] * 64
    response = await client.post(TEXT_PATH, json={"model": "tiny", "prompt": prompts, "max_tokens": 1})
    assert response.status_code == 200
    assert [request.prompt for request in backend.seen] == prompts


async def test_punctuation_inside_strings_is_no_structure(backend) -> None:
    backend.model_card = msgspec.structs.replace(backend.model_card, max_model_len=500_000)
    app = create_app(Api(backend, backend.tokenizer, Settings()))
    wanted = '[{"a\\": [1,2]}, \\\\' * 9000  # more brackets than values are allowed
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://edge") as client:
        response = await client.post(TEXT_PATH, json={"model": "tiny", "prompt": wanted, "max_tokens": 1})
    assert response.status_code == 200, response.text
    assert backend.tokenizer.decode(backend.seen[0].prompt[1:]) == wanted


async def test_heavy_work_leaves_the_event_loop_and_light_work_does_not() -> None:
    work = Bodies(MEBI)
    here = threading.get_ident()
    assert await work.run(SMALL, threading.get_ident) == here
    assert await work.run(SMALL + 1, threading.get_ident) != here


async def test_the_event_loop_turns_while_a_long_text_is_tokenised(backend) -> None:
    tokenizer = load_tokenizer(DEMO_TARGET)
    backend.model_card = msgspec.structs.replace(backend.model_card, max_model_len=10**6)
    app = create_app(Api(backend, tokenizer, Settings()))
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    turning = asyncio.create_task(turn())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://edge") as client:
        response = await client.post("/tokenize", json={"prompt": "The fox drafts tokens. " * 15_000})
    turning.cancel()
    assert response.status_code == 200
    assert turns > 5  # about one if the lock were held, hundreds as it is


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


async def test_large_bodies_wait_until_others_are_done_and_small_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "HELD", 2)
    limit = 4 * SMALL
    work = Bodies(limit)
    done: list[int] = []
    leave = asyncio.Event()

    async def hold(n_bytes: int, until: asyncio.Event | None) -> None:
        async with work.read(request_of(sent(n_bytes), content_length=str(n_bytes))) as body:
            if until is not None:
                await until.wait()
            done.append(len(body))

    first = [asyncio.create_task(hold(limit - i, leave)) for i in range(2)]
    await asyncio.sleep(0.01)
    third = asyncio.create_task(hold(limit - 2, None))
    await asyncio.wait_for(hold(SMALL, None), 60)
    assert done == [SMALL]
    leave.set()
    await asyncio.wait_for(asyncio.gather(*first, third), 60)
    assert done == [SMALL, limit, limit - 1, limit - 2]
    assert work._held == 0


async def test_without_room_and_without_bytes_a_body_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "HELD", 1)
    monkeypatch.setattr(bodies, "WAIT_S", 0.02)
    work = Bodies(2 * SMALL)

    async def never() -> AsyncIterator[bytes]:
        yield b"x" * (SMALL + 1)
        await asyncio.Event().wait()

    async with work.read(request_of(sent(2 * SMALL))):
        with pytest.raises(OverloadedError):
            async with work.read(request_of(sent(2 * SMALL))):
                pass
    monkeypatch.setattr(bodies, "READ_S", 0.05)
    with pytest.raises(ApiError) as caught:
        async with work.read(request_of(never())):
            pass
    assert caught.value.status == 408
    assert work._held == 0
    async with work.read(request_of(sent(2 * SMALL))) as body:
        assert len(body) == 2 * SMALL
