"""Server-sent events with little overhead, and work that is cancelled when the client disconnects.

Starlette's `StreamingResponse` fixes the status before the first item exists and, with some servers, notices a
disconnect only when it sends. Here the status follows the first event, and a disconnect cancels at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.errors import error_body, error_response
from app.telemetry.exchange import current

T = TypeVar("T")


class ClientGone(Exception):  # noqa: N818 - an event, not an error
    """The client closed the connection before the answer was complete."""


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled and awaited when the client disconnects or the caller is cancelled.

    Raises:
        ClientGone: the client disconnected first.
    """

    async def wait_for_disconnect() -> None:  # the body of the request has been read
        while (await receive())["type"] != "http.disconnect":
            pass

    task, watcher = asyncio.create_task(work), asyncio.create_task(wait_for_disconnect())
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        watcher.cancel()
        task.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


# Seconds to wait for the first event before the headers are sent; a later error has no status of its own.
HEADERS_AFTER_S = 1.0
KEEP_ALIVE_S = 10.0  # between two comments until the first event; proxies close what is silent for about a minute
KEEP_ALIVE = b": keep-alive\n\n"  # a comment, which clients ignore


async def with_comments(
    events: AsyncGenerator[bytes, None], keep_alive: float = KEEP_ALIVE_S
) -> AsyncGenerator[bytes, None]:
    """The events, and a comment whenever none comes for ``keep_alive`` seconds; closes ``events``."""
    async with aclosing(events):
        following: asyncio.Future[bytes] | None = None
        try:
            while True:
                following = following or asyncio.ensure_future(anext(events))
                await asyncio.wait({following}, timeout=keep_alive)
                if following.done():
                    try:
                        event = following.result()
                    except StopAsyncIteration:
                        return
                    following = None
                    yield event
                else:
                    yield KEEP_ALIVE
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)


class EventStream(Response):
    """Sends the server-sent events of a generator, one body message each; closes the generator in every case.

    An error within ``headers_after`` seconds and before the first event is answered with its own status; later it
    becomes the last event. Until the first event, a comment every ``keep_alive`` seconds keeps the connection alive.
    """

    media_type = "text/event-stream"
    charset = "utf-8"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        headers_after: float = HEADERS_AFTER_S,
        keep_alive: float = KEEP_ALIVE_S,
    ) -> None:
        self.headers_after, self.keep_alive = headers_after, keep_alive
        self.status_code = 200
        self.background = None
        self._events = events
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; returns when all are sent or the client has disconnected."""
        try:
            await run_while_connected(receive, self._send_all(scope, receive, send))
        except ClientGone:
            current().is_client_gone = True

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events) as events:
            first = asyncio.ensure_future(anext(events))
            try:
                await asyncio.wait({first}, timeout=self.headers_after)
                if first.done() and (error := first.exception()) is not None:
                    response = error_response(error)
                    limits = {name: value for name, value in self.headers.items() if name.startswith("x-")}
                    response.headers.update(limits)
                    await response(scope, receive, send)
                    return
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await self._send_events(first, events, send)
            finally:
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)

    async def _send_events(self, first: asyncio.Future[bytes], rest: AsyncGenerator[bytes, None], send: Send) -> None:
        """Send the events, with comments until the first one."""

        async def send_part(body: bytes, *, is_last: bool = False) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": not is_last})

        end = b""
        try:
            while not first.done():
                await send_part(KEEP_ALIVE)
                await asyncio.wait({first}, timeout=self.keep_alive)
            await send_part(first.result())
            async for event in rest:
                await send_part(event)
        except OSError:  # servers raise it when they send to a client that has disconnected
            current().is_client_gone = True
            return
        except Exception as error:
            end = b"data: " + error_body(error) + b"\n\n"
        await send_part(end, is_last=True)
