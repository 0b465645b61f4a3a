"""Reads one streamed answer over as many connections as it takes: a server that keeps answers sends the rest of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import aiohttp

from app.load.records import BROKEN, ERROR_EVENT
from app.load.stream import REFUSED, TIMEOUT, AttemptError, Endpoint, Event, stream

REATTACH_S = 60.0  # from the loss of a connection to giving up; also the longest Retry-After that counts
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0  # between two attempts
CONNECT_S = 5.0  # timeout of a new connection to a server that has answered before
DELETE_S = 5.0


class ReattachingReader:
    """Reads one answer.

    Args:
        endpoint: its timeout is that of the connection, and of each wait for a part of the answer.
        take: called with each event, once and in order, and its time in monotonic seconds.
        show_connection: called with None when a connection is lost, and with the seconds since then when there is one.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        endpoint: Endpoint,
        take: Callable[[Event, float], None],
        show_connection: Callable[[float | None], None],
    ) -> None:
        self._session, self._endpoint = session, endpoint
        self._take, self._show_connection = take, show_connection
        self._has_begun = False  # an event has come
        self._rest: Endpoint | None = None  # of the events that follow; None: the server does not keep the answer
        self._lost_at: float | None = None  # None: there is a connection
        self._pause = FIRST_PAUSE_S

    async def read(self, body: Mapping[str, Any]) -> AttemptError | None:
        """Send ``body``; returns None if the whole answer came, else why it did not."""
        while (failure := await self._attempt(body)) is not None and self._may_continue(failure, body):
            if self._lost_at is None:
                self._lost_at = time.monotonic()
                self._show_connection(None)
            await asyncio.sleep(max(self._pause, min(failure.retry_after or 0.0, REATTACH_S)))
            self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
        return failure

    async def delete(self) -> None:
        """Let the server stop the answer, if it still generates it, and forget it."""
        if self._rest is None:
            return
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):  # the server deletes it later
            timeout = aiohttp.ClientTimeout(total=DELETE_S)
            async with self._session.delete(self._rest.url, headers=self._endpoint.headers, timeout=timeout):
                pass

    async def _attempt(self, body: Mapping[str, Any]) -> AttemptError | None:
        wait = self._endpoint.timeout
        if self._rest is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=wait, sock_read=wait)
            return await stream(self._session, self._endpoint, body, timeout, self._take_event)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=min(wait, CONNECT_S), sock_read=wait)
        return await stream(self._session, self._rest, None, timeout, self._take_event, self._note_reconnected)

    def _may_continue(self, failure: AttemptError, body: Mapping[str, Any]) -> bool:
        """Whether another connection may bring the rest; before the first event, the request is sent again."""
        is_late = self._lost_at is not None and time.monotonic() - self._lost_at > REATTACH_S
        if is_late or failure.kind == ERROR_EVENT:
            return False
        if self._rest is not None:
            return failure.retryable or failure.kind == TIMEOUT
        if self._has_begun or not body.get("stream_options", {}).get("resumable"):
            return False
        return failure.kind in (BROKEN, REFUSED) or (failure.retryable and self._lost_at is not None)

    def _take_event(self, event: Event, now: float) -> None:
        self._note_reconnected()
        self._has_begun, self._pause = True, FIRST_PAUSE_S
        if event.sse_id is not None and isinstance(event.id, str):
            url = f"{self._endpoint.url.rpartition('/v1/')[0]}/v1/streams/{quote(event.id, safe='')}"
            self._rest = Endpoint(url, {**self._endpoint.headers, "Last-Event-ID": event.sse_id})
        self._take(event, now)

    def _note_reconnected(self) -> None:
        if self._lost_at is not None:
            self._show_connection(time.monotonic() - self._lost_at)
            self._lost_at = None
