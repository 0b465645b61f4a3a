"""Reads the bodies of requests, bounds the bytes of large ones, and works on these in threads.

Small bodies never wait here. Parsing, rendering and tokenising a large one in the event loop would stop all streams.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

from starlette.requests import Request

from app.access.caller import StatusError
from app.api.requests.parsing import SMALL
from app.telemetry.exchange import current
from engine.errors import OverloadedError

P = ParamSpec("P")
Result = TypeVar("Result")

THREADS = 2  # that work on large bodies; tokenising takes a core each
HELD = 16  # bodies of the largest size that a process holds at once, or more smaller ones
WAIT_S = 10.0  # a large body waits for the others before it is refused
READ_S = 60.0  # that a client may take to send a body
DRAIN_FACTOR = 16  # times the limit is read and dropped before the connection is given up


class Bodies:
    """All bodies of one process, of at most ``limit`` bytes each."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0  # bytes, of large bodies
        self._turn = asyncio.Lock()  # large bodies take their bytes in the order in which they came
        self._freed = asyncio.Event()
        self._threads = ThreadPoolExecutor(THREADS, "large-body")

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncGenerator[bytes]:
        """The whole body; a large one counts as held until the block ends.

        Bytes beyond the limit are read and dropped, because a client that is still sending would not see the answer.

        Raises:
            StatusError: 415 for a media type other than JSON and for a compressed body, 413 for a body above the limit,
                408 for a client that does not send.
            OverloadedError: too many bytes are held.
        """
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            message = f"Content-Type is {media_type[:64] or 'missing'}; it must be application/json"
            raise StatusError(415, message, code="unsupported_media_type")
        encoding = request.headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            message = f"Content-Encoding is {encoding[:64]}; send the body uncompressed"
            raise StatusError(415, message, code="unsupported_media_type")
        announced = request.headers.get("content-length", "")
        whole = min(int(announced), self._limit) if announced.isdecimal() and len(announced) < 20 else self._limit
        chunks: list[bytes] = []
        size = held = 0
        try:
            async with asyncio.timeout(READ_S) as sending:
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > self._limit:
                        chunks.clear()
                        if size > DRAIN_FACTOR * self._limit:
                            break
                        continue
                    if size > SMALL and not held:
                        await self._take(whole)
                        held = whole
                    chunks.append(chunk)
            if size > self._limit:
                raise StatusError(413, f"the body has more than {self._limit} bytes", code="body_too_large")
            yield b"".join(chunks)
        except TimeoutError:
            if not sending.expired():
                raise
            raise StatusError(408, f"the body did not arrive within {READ_S:g} s", code="request_timeout") from None
        finally:
            current().n_bytes = size
            self._held -= held
            self._freed.set()

    async def run(self, weight: int, function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """The result of ``function``, in a thread if ``weight``, its cost in JSON bytes to parse, is high."""
        if weight <= SMALL:
            return function(*args, **kwargs)
        work = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _take(self, n_bytes: int) -> None:
        try:
            async with asyncio.timeout(WAIT_S), self._turn:
                while self._held + n_bytes > HELD * self._limit:
                    self._freed.clear()
                    await self._freed.wait()
                self._held += n_bytes
        except TimeoutError:
            raise OverloadedError("the server is working on too many large bodies; retry later", WAIT_S) from None
