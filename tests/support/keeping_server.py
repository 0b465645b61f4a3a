"""A server that keeps one scripted answer for readers who lost their connection, over real sockets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.app.load.conftest import answer

STREAM = "/v1/streams/chatcmpl-7%2F"
EVENTS = answer()[:-1]
IDS = ["0.1", *map(str, range(1, len(EVENTS) - 1)), f"{len(EVENTS) - 2}.1"]
NAME = b'data: {"id": "chatcmpl-7/", '
KEPT = [f"id: {i}\n".encode() + event.replace(b"data: {", NAME, 1) for i, event in zip(IDS, EVENTS, strict=True)]
KEPT.append(b"data: [DONE]\n\n")


class KeepingServer:
    """Keeps one answer; each connection in ``cuts`` breaks after so many bytes; while ``holds``, only at byte 0.

    Other paths than those of the answer are served by ``app``.
    """

    def __init__(self, cuts: list[int], refusal: str = "", app: Any = None) -> None:
        self.cuts, self.refusal, self.app = list(cuts), refusal, app
        self.holds = False
        self.events = answer() if refusal else KEPT
        self.refused_reads = 0  # reads that are answered 503 before one is answered
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
        if scope["method"] == "GET" and self.refused_reads:
            self.refused_reads -= 1
            await self._send(send, 503, b"")
            return
        is_cut = bool(self.cuts)
        content = b"".join(self.events[IDS.index(last) + 1 if last else 0 :])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        body = content[: self.cuts.pop(0)] if is_cut else content
        await send({"type": "http.response.body", "body": body, "more_body": is_cut})
        while is_cut and body and self.holds:
            await asyncio.sleep(0.001)
        if is_cut:
            raise ConnectionAbortedError

    async def _send(self, send: Any, status: int, body: bytes) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})
