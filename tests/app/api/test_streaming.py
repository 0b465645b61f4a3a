"""When parts of a stream are sent, how streams end, and what stops on a disconnect; driven through bare ASGI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from app.api.streaming import EventStream
from engine.errors import OverloadedError
from tests.app.conftest import STEPS, ScriptedBackend
from tests.support.waiting import LIMIT_S, wait_until_async

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}


class AsgiClient:
    """The client's end of one ASGI request."""

    def __init__(self, app: Any, **fields: object) -> None:
        self.disconnected = asyncio.Event()
        self.messages: list[dict[str, Any]] = []
        body = json.dumps(CHAT | fields).encode()
        self._request = [{"type": "http.request", "body": body, "more_body": False}]
        path = "/v1/chat/completions"
        scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1"}
        scope |= {"method": "POST", "scheme": "http", "path": path, "raw_path": path.encode(), "root_path": ""}
        scope |= {"query_string": b"", "headers": [(b"content-type", b"application/json")]}
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._request:
            return self._request.pop()
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def events(self) -> list[bytes]:
        return [m["body"] for m in self.messages[1:] if m["body"]]

    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(event.removeprefix(b"data: ")) for event in self.events if b"[DONE]" not in event]


async def test_the_first_token_is_sent_at_once_and_then_one_event_per_step(app: Any, backend: ScriptedBackend) -> None:
    backend.answer = "plain words, no characters of several tokens"
    backend.holds_after = 1
    client = AsgiClient(app, stream=True)
    await wait_until_async(lambda: client.events)
    assert b'"content":"p' in client.events[0]
    assert not client.task.done()
    backend.holds_after = None
    await client.task
    n_steps, left = 0, len(backend.ids_for(backend.seen[0].params))
    while left > 0:
        left -= STEPS[n_steps % len(STEPS)]
        n_steps += 1
    assert len(client.events) == n_steps + 1  # and [DONE]
    assert client.events[-1] == b"data: [DONE]\n\n"
    assert client.messages[-1]["more_body"] is False


@pytest.mark.parametrize(
    ("fields", "end"),
    [({"stream": True}, "disconnect"), ({"n": 3}, "disconnect"), ({}, "cancel"), ({"stream": True, "n": 3}, "cancel")],
)
async def test_a_disconnect_or_a_cancelled_handler_cancels_all_choices(
    app: Any, backend: ScriptedBackend, fields: dict[str, Any], end: str
) -> None:
    backend.holds_after = 0
    client = AsgiClient(app, **fields)
    n = fields.get("n", 1)
    await wait_until_async(lambda: len(backend.running) == n)
    if end == "disconnect":
        client.disconnected.set()
        await asyncio.wait_for(client.task, LIMIT_S)
    else:
        client.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client.task
    assert not backend.running
    assert len(backend.cancelled) == n
    assert not [m for m in client.messages if m.get("status") == 200]


async def test_nothing_is_sent_after_a_disconnect_in_mid_stream(app: Any, backend: ScriptedBackend) -> None:
    backend.holds_after = 2
    client = AsgiClient(app, stream=True)
    await wait_until_async(lambda: len(client.events) == 2)
    client.disconnected.set()
    await asyncio.wait_for(client.task, LIMIT_S)
    assert backend.cancelled
    assert not backend.running
    assert len(client.events) == 2
    assert client.messages[-1].get("more_body") is True


@pytest.mark.parametrize("n", [1, 3])
async def test_a_failure_in_mid_stream_is_the_last_event(app: Any, backend: ScriptedBackend, n: int) -> None:
    backend.fails_after = 2
    client = AsgiClient(app, stream=True, n=n)
    await client.task
    assert client.messages[0]["status"] == 200
    error = client.chunks()[-1]["error"]
    assert (error["code"], error["type"]) == ("target_lost", "server_error")
    assert client.messages[-1]["more_body"] is False
    assert not backend.running


async def test_text_held_back_for_a_stop_string_is_sent_when_it_is_none(app: Any, backend: ScriptedBackend) -> None:
    backend.answer = "a STO b ST"
    client = AsgiClient(app, stream=True, stop=["STOP"])
    await client.task
    chunks = client.chunks()
    assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == backend.answer
    assert chunks[-1]["choices"][0]["stop_reason"] is None


class Queued:
    """A stream whose first event, or error, comes when ``ready`` is set."""

    def __init__(self, headers_after: float, error: Exception | None = None) -> None:
        self.ready = asyncio.Event()
        self.is_closed = False
        self.sent: list[Any] = []
        stream = EventStream(self._events(error), headers_after, keep_alive=0.001)
        self.task = asyncio.create_task(stream({"type": "http"}, self._receive, self._send))

    async def _events(self, error: Exception | None) -> AsyncGenerator[bytes, None]:
        try:
            await self.ready.wait()
            if error is not None:
                raise error
            yield b"data: 1\n\n"
            yield b"data: 2\n\n"
        finally:
            self.is_closed = True

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    async def _receive(self) -> Any:
        await asyncio.Event().wait()

    async def until_comments(self, n: int) -> None:
        await wait_until_async(lambda: len(self.sent) > n)


async def test_a_waiting_request_gets_headers_and_comments_before_its_first_event() -> None:
    queued = Queued(headers_after=0)
    await queued.until_comments(3)
    assert (queued.sent[0]["type"], queued.sent[0]["status"]) == ("http.response.start", 200)
    assert {message["body"] for message in queued.sent[1:]} == {b": keep-alive\n\n"}
    queued.ready.set()
    await queued.task
    bodies = [message["body"] for message in queued.sent[1:] if message["body"] != b": keep-alive\n\n"]
    assert bodies == [b"data: 1\n\n", b"data: 2\n\n", b""]
    assert queued.sent[-1]["more_body"] is False


async def test_an_error_has_its_status_before_the_headers_and_is_an_event_after_them() -> None:
    early = Queued(LIMIT_S, OverloadedError("the queue is full", 3.0))
    early.ready.set()
    await early.task
    assert early.sent[0]["status"] == 429
    late = Queued(0, OverloadedError("the wait would be too long", 3.0))
    await late.until_comments(1)
    late.ready.set()
    await late.task
    assert late.sent[0]["status"] == 200
    assert json.loads(late.sent[-1]["body"].removeprefix(b"data: "))["error"]["code"] == "overloaded"


async def test_a_cancelled_wait_closes_the_events() -> None:
    queued = Queued(headers_after=0)
    await queued.until_comments(1)
    queued.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued.task
    assert queued.is_closed
