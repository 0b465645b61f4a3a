"""Sends a streamed request to an OpenAI-compatible server, retries it, and records what came.

A `RequestObserver` sees text and breaks as they come.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from app.load.attempt import Attempt
from app.load.failures import AttemptError, of_exception, of_status
from app.load.records import OK, Break, RequestRecord

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0  # before a retry without Retry-After; doubled each time
KEEPALIVE_S = 2.0  # below that of servers, which would otherwise close a connection while a request is sent
ERROR_BYTES = 1 << 14


class RequestObserver:
    """Is told of text and breaks as they come; this one ignores them."""

    def chunk(self, record: RequestRecord, text: str, now: float) -> None:
        """New text came; text that a retry repeats is not new."""

    def broke(self, record: RequestRecord, found: Break) -> None:
        """An attempt failed."""


@dataclass(frozen=True)
class Endpoint:
    """The address of requests.

    Args:
        url: of the endpoint, such as ``http://127.0.0.1:8000/v1/chat/completions``.
        timeout: seconds that one attempt may take.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold a key
    timeout: float = 600.0


def open_session(tls: ssl.SSLContext | None = None) -> aiohttp.ClientSession:
    """A session without limit of connections and without compression; needs a running event loop.

    Args:
        tls: which servers are trusted; None: those that the system trusts.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, ssl=True if tls is None else tls)
    return aiohttp.ClientSession(connector=connector, headers={"Accept-Encoding": "identity"})


class LoadClient:
    """Sends requests.

    Args:
        retries: attempts after the first, for each request.
        watcher: is told of text and breaks.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        endpoint: Endpoint,
        retries: int = 0,
        watcher: RequestObserver | None = None,
    ) -> None:
        self._session = session
        self._endpoint = endpoint
        self._retries = retries
        self._watcher = watcher or RequestObserver()
        self._timeout = aiohttp.ClientTimeout(total=endpoint.timeout)

    async def ask(self, body: Mapping[str, Any], record: RequestRecord) -> RequestRecord:
        """Send ``body`` (which must ask for a stream) until it is answered or given up; returns ``record``, filled.

        A failure of the request is not raised, but becomes the record's outcome; a cancelled record has none.
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
            await asyncio.sleep(_backoff(failure, len(record.breaks)))

    async def _attempt(self, body: Mapping[str, Any], attempt: Attempt) -> AttemptError | None:
        """Make one attempt; returns None if the whole answer came."""
        has_begun = False
        endpoint = self._endpoint
        try:
            async with self._session.post(
                endpoint.url, json=body, headers=endpoint.headers, timeout=self._timeout
            ) as response:
                if response.status != 200:
                    return of_status(response.status, response.headers, await response.content.read(ERROR_BYTES))
                has_begun = True
                async for piece in response.content.iter_any():
                    attempt.take(piece, time.monotonic())
                attempt.check_complete()
        except AttemptError as failure:
            return failure
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return of_exception(error, has_begun)
        return None


def _broken(failure: AttemptError, record: RequestRecord, now: float) -> Break:
    return Break(failure.kind, failure.message, now, failure.status, failure.retry_after, len(record.text))


def _backoff(failure: AttemptError, n_breaks: int) -> float:
    """Seconds until the next attempt: the server's Retry-After, else an exponential backoff."""
    if failure.retry_after is not None:
        return failure.retry_after
    return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** (n_breaks - 1))
