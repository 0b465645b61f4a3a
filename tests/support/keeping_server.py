"""A server that keeps one scripted answer for readers who lost their connection, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from tests.app.load.conftest import answer

STREAM = "/v1/streams/chatcmpl-7%2F"
EVENTS = answer()[:-1]
IDS = ["0.1", *map(str, range(1, len(EVENTS) - 1))]  # that of the usage, the last event, is none
NAMED = [event.replace(b"data: {", b'data: {"id": "chatcmpl-7/", ', 1) for event in EVENTS]
KEPT = [f"id: {i}\n".encode() + event for i, event in zip(IDS, NAMED[:-1], strict=True)]
KEPT += [NAMED[-1], b"data: [DONE]\n\n"]
RETRY_AFTER_S = 0.4


class KeepingServer:
    """Keeps one answer; each request in ``cuts`` gets that status, or its connection breaks after so many bytes.

    While ``holds``, connections break only at byte 0. Other paths than those of the answer are served by ``app``.
    """

    def __init__(self, cuts: Sequence[int | HTTPStatus], refusal: str = "", app: Any = None) -> None:
        self.cuts, self.refusal, self.app = list(cuts), refusal, app
        self.holds = False
        self.events = answer() if refusal else KEPT
        self.asked: list[dict[str, Any]] = []
        self.calls: list[tuple[str, str, str]] = []  # method, path, Last-Event-ID

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.app is not None and not scope["path"].startswith(("/v1/chat/", "/v1/streams/")):
            await self.app(scope, receive, send)
            return
        if scope["path"].endswith("/models"):
            await self._send(send, 200, b'{"data": [{"id": "tiny"}]}')
            return
        last = dict(scope["headers"]).get(b"last-event-id", b"").decode()
        self.calls.append((scope["method"], scope["raw_path"].decode(), last))
        if scope["method"] == "POST":
            self.asked.append(json.loads((await receive())["body"]))
            if self.refusal and "resumable" in self.asked[-1]["stream_options"]:
                await self._send(send, 400, json.dumps({"error": {"message": self.refusal}}).encode())
                return
        if scope["method"] == "DELETE":
            await self._send(send, 200, b"{}")
            return
        content = b"".join(self.events[IDS.index(last) + 1 if last else 0 :])
        is_cut = bool(self.cuts)
        cut = self.cuts.pop(0) if is_cut else len(content)
        if isinstance(cut, HTTPStatus):
            await self._send(send, cut, b"")
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        body = content[:cut]
        await send({"type": "http.response.body", "body": body, "more_body": is_cut})
        while is_cut and body and self.holds:
            await asyncio.sleep(0.001)
        if is_cut:
            raise ConnectionAbortedError

    async def _send(self, send: Any, status: int, body: bytes) -> None:
        headers = [(b"retry-after", str(RETRY_AFTER_S).encode())] if status >= 500 else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
