"""Reads one streamed answer over as many connections as it takes: a server that keeps answers sends the rest of it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import aiohttp

from app.load.records import BROKEN, ERROR_EVENT
from app.load.stream import (
    DONE,
    ERROR_BYTES,
    REFUSED,
    TIMEOUT,
    AttemptError,
    Endpoint,
    Event,
    of_exception,
    of_status,
    read_event,
    split_events,
)

REATTACH_S = 60.0  # from the loss of a connection to giving up
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0  # between two attempts
CONNECT_S = 5.0  # timeout of a new connection to a server that has answered before
DELETE_S = 5.0
EVENT_ID = re.compile(rb"^id: ?([0-9.,]+)$", re.MULTILINE)  # tokens so far, of each choice (docs/reference/http.md)


class ReattachingReader:
    """Reads one answer.

    Args:
        endpoint: its timeout is that of the connection, and of each wait for a part of the answer.
        take: called with each event, once and in order.
        show_connection: called with None when a connection is lost, and with the seconds since then when events come.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        endpoint: Endpoint,
        take: Callable[[Event], None],
        show_connection: Callable[[float | None], None],
    ) -> None:
        self._session, self._endpoint = session, endpoint
        self._take, self._show_connection = take, show_connection
        self._has_begun = False  # an event has come
        self._stream_url: str | None = None  # None: the server does not keep the answer, or no event has come
        self._last_id = ""  # of the last event
        self._lost_at: float | None = None  # None: there is a connection
        self._pause = FIRST_PAUSE_S

    async def read(self, body: Mapping[str, Any]) -> AttemptError | None:
        """Send ``body``; returns None if the whole answer came, else why it did not.

        If the caller is cancelled, the server stops the answer and deletes it.
        """
        try:
            while (failure := await self._attempt(body)) is not None and self._may_continue(failure, body):
                if self._lost_at is None:
                    self._lost_at, self._pause = time.monotonic(), FIRST_PAUSE_S
                    self._show_connection(None)
                await asyncio.sleep(self._pause)
                self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
            return failure
        except asyncio.CancelledError:
            await self._delete()
            raise

    def _may_continue(self, failure: AttemptError, body: Mapping[str, Any]) -> bool:
        """Whether another connection may bring the rest; before the first event, the request is sent again."""
        if self._lost_at is not None and time.monotonic() - self._lost_at > REATTACH_S:
            return False
        if self._stream_url is not None:
            return failure.kind == TIMEOUT or (failure.retryable and failure.kind != ERROR_EVENT)
        is_resumable = "resumable" in body.get("stream_options", {})
        return is_resumable and not self._has_begun and failure.kind in (BROKEN, REFUSED)

    async def _attempt(self, body: Mapping[str, Any]) -> AttemptError | None:
        """Read what one connection brings; returns None at the end of the answer, else why it ended before."""
        has_answered = is_done = False
        rest = b""
        try:
            async with self._request(body) as response:
                if response.status != 200:
                    return of_status(response.status, response.headers, await response.content.read(ERROR_BYTES))
                has_answered = True
                async for piece in response.content.iter_any():
                    *events, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
                    for event in events:
                        is_done = self._is_last(event) or is_done
        except AttemptError as failure:
            return failure
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return of_exception(error, has_answered)
        return None if is_done else AttemptError(BROKEN, "the stream ended without [DONE]", retryable=True)

    def _request(self, body: Mapping[str, Any]) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers, wait = self._endpoint.headers, self._endpoint.timeout
        connect = wait if self._stream_url is None else min(wait, CONNECT_S)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=wait)
        if self._stream_url is None:
            return self._session.post(self._endpoint.url, json=body, headers=headers, timeout=timeout)
        headers = {**headers, "Last-Event-ID": self._last_id}
        return self._session.get(self._stream_url, headers=headers, timeout=timeout)

    def _is_last(self, raw: bytes) -> bool:
        """Take an event with its fields; returns whether it ends the stream."""
        found, _ = split_events(raw + b"\n\n")
        if not found:  # a comment
            return False
        if self._lost_at is not None:
            self._show_connection(time.monotonic() - self._lost_at)
            self._lost_at = None
        if found[0] == DONE:
            return True
        event = read_event(found[0])
        self._take(event)
        self._has_begun = True
        if (last := EVENT_ID.search(raw)) and isinstance(event.id, str):
            self._last_id = last[1].decode()
            self._stream_url = f"{self._endpoint.url.partition('/v1/')[0]}/v1/streams/{quote(event.id, safe='')}"
        return False

    async def _delete(self) -> None:
        if self._stream_url is None:
            return
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):  # it ends without a reader, too
            timeout = aiohttp.ClientTimeout(total=DELETE_S)
            async with self._session.delete(self._stream_url, headers=self._endpoint.headers, timeout=timeout):
                pass
