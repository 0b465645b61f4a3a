"""A scripted server over real sockets: it breaks streams, refuses, stalls, and cuts bytes anywhere."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from tests.app.conftest import listening

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
    """What the server answers: ``replies`` in turn, then ``default``; and the requests that it saw.

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
        body = b""
        while (message := await receive()).get("more_body") or message.get("body"):
            body += message["body"]
            if not message["more_body"]:
                break
        status, headers, parts = (200, {}, [json.dumps({"data": [{"id": name} for name in self.models]}).encode()])
        if not scope["path"].endswith("/models"):
            self.bodies.append(json.loads(body))
            self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
            status, headers, parts = self.replies.popleft() if self.replies else self.default
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        for part in parts:
            if part == self.BREAK:
                raise ConnectionAbortedError  # the server closes the connection without an end of the body
            if part == self.HANG:
                await receive()  # until the client disconnects
                return
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@pytest.fixture
def script() -> Iterator[Script]:
    scripted = Script()
    with listening(scripted) as scripted.url:
        yield scripted
