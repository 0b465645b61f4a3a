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
from app.load.records import OK, Break, RequestRecord
from app.load.stream import AttemptError, Endpoint

POLL_S = 0.25
PATIENCE_S = 90.0  # while a server answers with 5xx, or not at all
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
        record.ended, record.outcome = time.monotonic(), OK if failure is None else failure.kind
        if failure is not None:
            record.breaks.append(Break(failure.kind, failure.message, record.ended, failure.status))

    async def _read_stream(self, body: Mapping[str, Any], record: RequestRecord) -> AttemptError | None:
        attempt, deadline = Attempt(record), time.monotonic() + PATIENCE_S
        options = {"include_usage": True, "resumable": True}
        reader = ReattachingReader(self._session, self._endpoint, attempt.take, lambda _: None)
        while (failure := await reader.read({**body, "stream_options": options})) is not None:
            is_refused = failure.status is not None and failure.retryable  # while an ingress starts
            if not is_refused or time.monotonic() > deadline:
                break
            await asyncio.sleep(max(POLL_S, failure.retry_after or 0.0))
        attempt.settle(failure is None, time.monotonic())
        return failure

    async def _wait_for_response(self, body: Mapping[str, Any], record: RequestRecord) -> AttemptError | None:
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
                record.chunks.append(time.monotonic())
            record.diverged |= not text.startswith(record.text)
            record.text = text
        if found.get("status") in ("completed", "incomplete"):
            return None
        return AttemptError("response", str(found)[:200], retryable=False)

    async def _call(self, method: str, url: str, **content: Any) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                headers = self._endpoint.headers
                async with self._session.request(method, url, headers=headers, **content) as response:
                    found: dict[str, Any] = await response.json(content_type=None)
                    if response.status < HTTPStatus.INTERNAL_SERVER_ERROR or time.monotonic() > deadline:
                        return found
            except (aiohttp.ClientError, OSError, ValueError) as error:
                if time.monotonic() > deadline:
                    return {"error": str(error)}
            await asyncio.sleep(POLL_S)
