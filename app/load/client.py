"""One streamed request to an OpenAI server, retried as told, becomes a Record; not when to send it, nor what it means.

Others use it too: give it a `Watcher` to see text and breaks as they come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from app.load.attempt import Attempt
from app.load.failures import Failure, of_exception, of_status
from app.load.records import OK, Break, Record

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0  # before a retry, when the server does not say; doubled each time
KEEPALIVE_S = 2.0  # shorter than servers', which would otherwise close connections under a request
ERROR_BYTES = 1 << 14


class Watcher:
    """Told what happens to requests while it happens; this one does nothing."""

    def chunk(self, record: Record, text: str, now: float) -> None:
        """New text came (not what a retry repeats)."""

    def broke(self, record: Record, found: Break) -> None:
        """An attempt failed."""


@dataclass(frozen=True)
class Endpoint:
    """Where requests go.

    Args:
        url: of the endpoint, such as ``http://127.0.0.1:8000/v1/chat/completions``.
        headers: sent with every request.
        timeout: seconds that one attempt may take.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold a key
    timeout: float = 600.0


def open_session() -> aiohttp.ClientSession:
    """A session with as many connections as requests, and no compression; needs a running loop."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
    return aiohttp.ClientSession(connector=connector, headers={"Accept-Encoding": "identity"})


class Client:
    """Sends requests.

    Args:
        session: shared by all requests.
        endpoint: where to.
        retries: attempts after the first, for each request.
        watcher: told of text and breaks.
    """

    def __init__(
        self, session: aiohttp.ClientSession, endpoint: Endpoint, retries: int = 0, watcher: Watcher | None = None
    ) -> None:
        self._session = session
        self._endpoint = endpoint
        self._retries = retries
        self._watcher = watcher or Watcher()
        self._timeout = aiohttp.ClientTimeout(total=endpoint.timeout)

    async def ask(self, body: Mapping[str, Any], record: Record) -> Record:
        """Send ``body`` (which must ask for a stream) until it is answered or given up; returns ``record``, filled.

        No failure of the request is raised: it is the record's outcome. If cancelled, the record stays without one.
        """
        record.sent = time.monotonic()
        while True:
            attempt = Attempt(record, self._watcher.chunk)
            failure = await self._attempt(body, attempt)
            now = time.monotonic()
            attempt.settle(failure is None, now)
            if failure is None:
                record.ended, record.outcome = now, OK
                return record
            record.breaks.append(_broken(failure, record, now))
            self._watcher.broke(record, record.breaks[-1])
            if not failure.retryable or len(record.breaks) > self._retries:
                record.ended, record.outcome = now, failure.kind
                return record
            await asyncio.sleep(_wait(failure, len(record.breaks)))

    async def _attempt(self, body: Mapping[str, Any], attempt: Attempt) -> Failure | None:
        """One attempt; None: the whole answer came."""
        has_begun = False
        place = self._endpoint
        try:
            async with self._session.post(
                place.url, json=body, headers=place.headers, timeout=self._timeout
            ) as response:
                if response.status != 200:
                    return of_status(response.status, response.headers, await response.content.read(ERROR_BYTES))
                has_begun = True
                async for piece in response.content.iter_any():
                    attempt.take(piece, time.monotonic())
                attempt.check_complete()
        except Failure as failure:
            return failure
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return of_exception(error, has_begun)
        return None


def _broken(failure: Failure, record: Record, now: float) -> Break:
    return Break(failure.kind, failure.message, now, failure.status, failure.retry_after, len(record.text))


def _wait(failure: Failure, n_breaks: int) -> float:
    """Seconds until the next attempt: as the server says, else longer and longer."""
    if failure.retry_after is not None:
        return failure.retry_after
    return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** (n_breaks - 1))
