"""Clients of kept answers, which lose connections and ask again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import aiohttp

from app.chat.reattaching import ReattachingReader
from app.load.client import Attempt
from app.load.records import OK, RequestRecord
from app.load.stream import Endpoint

POLL_S = 0.25
PATIENCE_S = 90.0  # for an answer to a poll
PER_BACKGROUND = 3  # of so many clients one waits for a response in the background; the others read streams


class KeptAnswerClient:
    """Asks for resumable streams and responses in the background.

    Args:
        endpoint: of chats.
    """

    def __init__(self, session: aiohttp.ClientSession, endpoint: Endpoint) -> None:
        self._session, self._endpoint = session, endpoint

    async def ask(self, body: Mapping[str, Any], record: RequestRecord) -> None:
        """Fill the record of one answer; a lost connection is no failure."""
        record.sent = time.monotonic()
        is_background = record.index % PER_BACKGROUND == PER_BACKGROUND - 1
        failure = await (self._wait_for_response if is_background else self._read_stream)(body, record)
        record.ended, record.outcome = time.monotonic(), failure or OK

    async def _read_stream(self, body: Mapping[str, Any], record: RequestRecord) -> str:
        attempt = Attempt(record)
        options = {"include_usage": True, "resumable": True}
        reader = ReattachingReader(
            self._session, self._endpoint, lambda event: attempt.take(event, time.monotonic()), lambda _: None
        )
        failure = await reader.read({**body, "stream_options": options})
        attempt.settle(failure is None, time.monotonic())
        return "" if failure is None else f"{failure.kind}: {failure.message}"

    async def _wait_for_response(self, body: Mapping[str, Any], record: RequestRecord) -> str:
        same = {name: value for name, value in body.items() if name in ("model", "temperature", "seed", "ignore_eos")}
        same |= {"speculative": body["speculative"]} if "speculative" in body else {}
        more = {"input": body["messages"], "max_output_tokens": body["max_tokens"], "background": True}
        url = self._endpoint.url.replace("chat/completions", "responses")
        found = await self._call("POST", url, json=same | more)
        while found.get("status") in ("queued", "in_progress"):
            await asyncio.sleep(POLL_S)
            found = await self._call("GET", f"{url}/{found['id']}")
            text = "".join(part["text"] for item in found.get("output", ()) for part in item["content"])
            if len(text) > len(record.text):
                record.text = text
                record.chunks.append(time.monotonic())
        return "" if found.get("status") in ("completed", "incomplete") else str(found)[:200]

    async def _call(self, method: str, url: str, **content: Any) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                async with self._session.request(method, url, **content) as response:
                    found: dict[str, Any] = await response.json(content_type=None)
                    if response.status < HTTPStatus.INTERNAL_SERVER_ERROR or time.monotonic() > deadline:
                        return found
            except (aiohttp.ClientError, OSError, ValueError) as error:
                if time.monotonic() > deadline:
                    return {"error": str(error)}
            await asyncio.sleep(POLL_S)
