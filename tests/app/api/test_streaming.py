"""Timing and endings of streams, driven through bare ASGI: what is sent when, and what stops when the client goes."""

from __future__ import annotations

import asyncio
import json

import pytest

from app.api.streaming import EventStream
from engine.errors import OverloadedError

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}


class Client:
    """The client's end of one ASGI request."""

    def __init__(self, app, **fields: object) -> None:
        self.body = json.dumps(CHAT | fields).encode()
        self.gone = asyncio.Event()
        self.messages: list[dict] = []
        self.arrived = asyncio.Event()
        self.sent_request = False
        self.task = asyncio.create_task(app(self.scope(), self.receive, self.send))

    def scope(self) -> dict:
        path = "/v1/chat/completions"
        headers = [(b"content-type", b"application/json")]
        version = {"version": "3.0", "spec_version": "2.3"}
        return {"type": "http", "asgi": version, "http_version": "1.1", "method": "POST", "scheme": "http"} | {
            "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"", "headers": headers,
        }  # fmt: skip

    async def receive(self) -> dict:
        if not self.sent_request:
            self.sent_request = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict) -> None:
        self.messages.append(message)
        self.arrived.set()

    async def until(self, n_messages: int) -> None:
        while len(self.messages) < n_messages:
            self.arrived.clear()
            await asyncio.wait_for(self.arrived.wait(), 60)

    @property
    def events(self) -> list[bytes]:
        return [m["body"] for m in self.messages[1:] if m["body"]]


async def test_the_first_token_is_sent_at_once_and_then_one_event_per_step(app, backend) -> None:
    backend.answer = "plain words, no characters of several tokens"
    backend.delay = 0.05
    client = Client(app, stream=True)
    await client.until(2)
    assert not client.task.done()
    assert b'"content":"p' in client.events[0]
    await client.task
    params = backend.seen[0].params
    n_steps = 0
    left = len(backend.ids_for(params))
    while left > 0:
        left -= (1, 3, 1, 4, 2)[n_steps % 5]
        n_steps += 1
    assert len(client.events) == n_steps + 1  # and [DONE]
    assert client.events[-1] == b"data: [DONE]\n\n"
    assert client.messages[-1]["more_body"] is False


async def test_events_are_one_line_of_json_each(app) -> None:
    client = Client(app, stream=True, stream_options={"include_usage": True})
    await client.task
    *events, last = b"".join(client.events).split(b"\n\n")[:-1]
    assert last == b"data: [DONE]"
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]
    assert all(b"\n" not in event for event in events)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["usage"]["total_tokens"] > 0
    assert "metrics" in chunks[-1]
    assert not any("metrics" in chunk for chunk in chunks[:-1])


@pytest.mark.parametrize("fields", [{"stream": True}, {}, {"stream": True, "n": 3}, {"n": 3}], ids=str)
async def test_a_client_that_goes_cancels_its_choices_within_a_step(app, backend, fields: dict) -> None:
    backend.delay = 600.0  # the step in which the client goes would take long
    client = Client(app, **fields)
    while len(backend.running) < fields.get("n", 1):
        await asyncio.sleep(0.001)
    client.gone.set()
    await asyncio.wait_for(client.task, 60)
    assert not backend.running
    assert len(backend.cancelled) == fields.get("n", 1)
    assert not [m for m in client.messages if m.get("status") == 200]


async def test_a_client_that_goes_in_mid_stream_is_sent_nothing_more(app, backend) -> None:
    backend.delay = 0.01
    client = Client(app, stream=True)
    await client.until(3)
    client.gone.set()
    await asyncio.wait_for(client.task, 60)
    assert backend.cancelled
    assert not backend.running
    assert client.messages[-1].get("more_body") is True


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_handler_cancels_its_choices(app, backend, stream: bool) -> None:
    backend.delay = 30.0
    client = Client(app, stream=stream, n=2)
    while len(backend.running) < 2:
        await asyncio.sleep(0.001)
    client.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await client.task
    assert not backend.running


async def test_a_failure_in_mid_stream_is_an_event_and_the_last(app, backend) -> None:
    backend.fails_after = 2
    client = Client(app, stream=True)
    await client.task
    assert client.messages[0]["status"] == 200
    error = json.loads(client.events[-1].removeprefix(b"data: "))["error"]
    assert (error["code"], error["type"]) == ("target_lost", "server_error")
    assert client.messages[-1]["more_body"] is False
    assert not backend.running


async def test_one_failing_choice_cancels_the_others(app, backend) -> None:
    backend.delay = 0.005
    backend.fails_after = 4
    client = Client(app, stream=True, n=3)
    await client.task
    assert b'"error"' in client.events[-1]
    assert not backend.running


async def test_held_back_text_is_sent_when_it_turns_out_harmless(app, backend) -> None:
    backend.answer = "a STO b ST"
    client = Client(app, stream=True, stop=["STOP"])
    await client.task
    chunks = [json.loads(e.removeprefix(b"data: ")) for e in client.events[:-1]]
    assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == backend.answer
    assert chunks[-1]["choices"][0]["stop_reason"] is None


def queued(ready: asyncio.Event, error: Exception | None = None) -> tuple[asyncio.Task, list[dict], asyncio.Event]:
    """A stream whose first event comes when ``ready`` is set; what it sends, and that it has sent something."""
    sent: list[dict] = []
    arrived = asyncio.Event()

    async def events():
        await ready.wait()
        if error is not None:
            raise error
        yield b"data: 1\n\n"
        yield b"data: 2\n\n"

    async def send(message: dict) -> None:
        sent.append(message)
        arrived.set()

    async def receive() -> dict:
        await asyncio.Event().wait()
        return {}

    stream = EventStream(events(), headers_after=0.01, keep_alive=0.01)
    return asyncio.create_task(stream({"type": "http"}, receive, send)), sent, arrived


async def until_comments(sent: list[dict], arrived: asyncio.Event, n: int) -> None:
    while len(sent) < 1 + n:
        arrived.clear()
        await asyncio.wait_for(arrived.wait(), 60)


async def test_a_request_that_waits_gets_headers_and_comments_before_its_first_event() -> None:
    ready = asyncio.Event()
    task, sent, arrived = queued(ready)
    await until_comments(sent, arrived, 3)
    assert (sent[0]["type"], sent[0]["status"]) == ("http.response.start", 200)
    assert {message["body"] for message in sent[1:]} == {b": keep-alive\n\n"}
    ready.set()
    await task
    bodies = [message["body"] for message in sent[1:] if message["body"] != b": keep-alive\n\n"]
    assert bodies == [b"data: 1\n\n", b"data: 2\n\n", b""]
    assert sent[-1]["more_body"] is False


async def test_an_error_after_the_headers_is_an_event() -> None:
    ready = asyncio.Event()
    task, sent, arrived = queued(ready, OverloadedError("the wait would be too long", 3.0))
    await until_comments(sent, arrived, 1)
    ready.set()
    await task
    assert sent[0]["status"] == 200
    assert json.loads(sent[-1]["body"].removeprefix(b"data: "))["error"]["code"] == "overloaded"


async def test_an_error_before_them_has_its_status() -> None:
    ready = asyncio.Event()
    ready.set()
    task, sent, _ = queued(ready, OverloadedError("the queue is full", 3.0))
    await task
    assert sent[0]["status"] == 429


async def test_a_client_that_stops_waiting_closes_the_events() -> None:
    ready = asyncio.Event()
    task, sent, arrived = queued(ready)
    await until_comments(sent, arrived, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    n_sent = len(sent)
    ready.set()
    await asyncio.sleep(0.05)
    assert len(sent) == n_sent
