"""Sends a streamed request to an OpenAI-compatible server, retries it, and records what came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from app.load.records import OK, Break, RequestRecord
from app.load.stream import Endpoint, Event, stream

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0  # before a retry without Retry-After; doubled each time


class LoadClient:
    """Sends requests, each with up to ``retries`` attempts after the first."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: Endpoint, retries: int = 0) -> None:
        self._session, self._endpoint, self._retries = session, endpoint, retries
        self._timeout = aiohttp.ClientTimeout(total=endpoint.timeout)

    async def ask(self, body: Mapping[str, Any], record: RequestRecord) -> RequestRecord:
        """Send ``body`` (which must ask for a stream) until it is answered or given up; returns ``record``, filled.

        A failure of the request is not raised, but becomes the record's outcome; a cancelled record has none.
        """
        record.sent = time.monotonic()
        while True:
            attempt = Attempt(record)
            failure = await stream(self._session, self._endpoint, body, self._timeout, attempt.take)
            now = time.monotonic()
            attempt.settle(failure is None, now)
            if failure is None:
                record.ended, record.outcome = now, OK
                return record
            record.breaks.append(
                Break(failure.kind, failure.message, now, failure.status, failure.retry_after, len(record.text))
            )
            if not failure.retryable or len(record.breaks) > self._retries:
                record.ended, record.outcome = now, failure.kind
                return record
            backoff = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** (len(record.breaks) - 1))
            await asyncio.sleep(backoff if failure.retry_after is None else failure.retry_after)


class Attempt:
    """Adds to the record of a request the text of one attempt that earlier attempts did not bring."""

    def __init__(self, record: RequestRecord) -> None:
        self._record = record
        self._parts: list[str] = []
        self._length = 0

    def take(self, event: Event, now: float) -> None:
        record = self._record
        for choice in event.choices or ():
            if added := choice.added:
                self._parts.append(added)
                self._length += len(added)
                if self._length > len(record.text):
                    record.chunks.append(now)
                    self._recovered(now)
            record.finish_reason = choice.finish_reason or record.finish_reason
        if event.usage is not None:
            record.prompt_tokens = event.usage.prompt_tokens
            record.completion_tokens = event.usage.completion_tokens
        record.speculation = event.speculation or record.speculation

    def settle(self, is_complete: bool, now: float) -> None:
        """Compare the text with that of earlier attempts; the record keeps a complete text, else the longer one."""
        text, before = "".join(self._parts), self._record.text
        has_same_start = text.startswith(before) if is_complete else text[: len(before)] == before[: len(text)]
        self._record.diverged |= not has_same_start
        if is_complete:
            self._recovered(now)
        if is_complete or len(text) > len(before):
            self._record.text = text

    def _recovered(self, now: float) -> None:
        for found in self._record.breaks:
            if found.recovered is None:
                found.recovered = now - found.at
