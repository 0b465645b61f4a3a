"""A server that does what a script says, over real sockets: breaks streams, refuses, stalls, cuts bytes anywhere."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import uvicorn

from app.load.client import open_session

TEXT = "Größe 🦊 日本語, and on it goes."


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


def chat(text: str, finish: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": finish}], usage=None)


def usage(n: int) -> bytes:
    return event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": n, "total_tokens": n + 3})


def answer(text: str = TEXT, size: int = 5, n: int = 11) -> list[bytes]:
    """A whole stream: a role, pieces of ``size`` characters, usage, the end."""
    pieces = [chat(text[i : i + size]) for i in range(0, len(text), size)]
    return [event(choices=[{"delta": {"role": "assistant", "content": ""}}]), *pieces, usage(n), b"data: [DONE]\n\n"]


class Script:
    """What the server answers: ``replies`` in turn, then ``default``; every body it saw.

    A reply is ``(status, headers, parts)``; a part is bytes, ``BREAK`` (the connection is cut) or ``HANG``.
    """

    BREAK, HANG = "break", "hang"

    def __init__(self) -> None:
        self.replies: deque[tuple[int, dict[str, str], list[Any]]] = deque()
        self.default: tuple[int, dict[str, str], list[Any]] = (200, {}, answer())
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.models = ["tiny", "other"]
        self.url = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].endswith("/models"):
            listed = json.dumps({"data": [{"id": name} for name in self.models]}).encode()
            await self._reply(send, 200, {}, [listed])
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.bodies.append(json.loads(body))
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        await self._reply(send, *(self.replies.popleft() if self.replies else self.default))

    async def _reply(self, send: Any, status: int, headers: dict[str, str], parts: list[Any]) -> None:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        for part in parts:
            if part == self.BREAK:
                raise ConnectionAbortedError  # the server closes the connection without an end of the body
            if part == self.HANG:
                await asyncio.sleep(30)
            else:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@pytest.fixture
def script() -> Iterator[Script]:
    scripted = Script()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        config = uvicorn.Config(scripted, log_level="critical", lifespan="off", ws="none", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 120
        while not server.started:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)
        scripted.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        yield scripted
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
async def session() -> AsyncIterator[Any]:
    async with open_session() as opened:
        yield opened
