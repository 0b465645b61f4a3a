"""One streamed answer of an OpenAI-compatible server: an HTTP request becomes events, or the reason why it failed."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import msgspec

from app.load.records import BROKEN, ERROR_EVENT

REFUSED, TIMEOUT, BAD_EVENT, TOO_MANY = "no connection", "timeout", "bad event", "429"
MESSAGE_CHARS = 120
DONE = b"[DONE]"
KEEPALIVE_S = 2.0  # below that of servers, which would otherwise close a connection while a request is sent
ERROR_BYTES = 1 << 14


@dataclass(frozen=True)
class Endpoint:
    """The address of requests."""

    url: str  # such as ``http://127.0.0.1:8000/v1/chat/completions``
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold a key
    timeout: float = 600.0  # seconds that one attempt may take


@dataclass(eq=False)
class AttemptError(Exception):
    """An attempt did not bring the whole answer."""

    kind: str  # the word under which the report counts it
    message: str  # of the server or the socket
    retryable: bool  # whether the same request may succeed later
    status: int | None = None  # of HTTP, if there was an answer
    retry_after: float | None = None  # seconds the server asked to wait


class ChunkDelta(msgspec.Struct):
    """The text that a chunk of a chat adds."""

    content: str | None = None
    reasoning_content: str | None = None  # vLLM's, of models that reason first


class ChunkChoice(msgspec.Struct):
    """One choice of a chunk: ``delta`` in chats, ``text`` in completions."""

    delta: ChunkDelta | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def added(self) -> str:
        if self.delta is None:
            return self.text or ""
        return (self.delta.reasoning_content or "") + (self.delta.content or "")


class ChunkUsage(msgspec.Struct):
    """Token counts of the answer so far."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Event(msgspec.Struct):
    """One event of a stream; other fields are skipped."""

    id: Any = None  # of the answer
    choices: list[ChunkChoice] | None = None
    usage: ChunkUsage | None = None
    metrics: Any = None
    error: Any = None
    sse_id: Any = None  # text of the event's ``id:`` line; None without one

    @property
    def speculation(self) -> dict[str, Any]:
        found = self.metrics.get("speculative_decoding") if isinstance(self.metrics, dict) else None
        return found if isinstance(found, dict) else {}


decode = msgspec.json.Decoder(Event).decode


def open_session(tls: ssl.SSLContext | None = None) -> aiohttp.ClientSession:
    """A session without limit of connections and without compression; ``tls``: as in ``LoadProfile``."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, ssl=True if tls is None else tls)
    return aiohttp.ClientSession(connector=connector, headers={"Accept-Encoding": "identity"})


async def stream(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    body: Mapping[str, Any] | None,
    timeout: aiohttp.ClientTimeout,
    take: Callable[[Event, float], None],
    note_open: Callable[[], None] = lambda: None,
) -> AttemptError | None:
    """Send ``body``, which must ask for a stream; returns None if the whole answer came, else why it did not.

    Args:
        body: None: read a stream that exists, with GET.
        take: called with every event and its time in monotonic seconds.
        note_open: called when the status of the answer is 200.
    """
    method = "GET" if body is None else "POST"
    has_begun = is_done = False
    rest = b""
    try:
        async with session.request(
            method, endpoint.url, json=body, headers=endpoint.headers, timeout=timeout
        ) as response:
            if response.status != 200:
                return of_status(response.status, response.headers, await response.content.read(ERROR_BYTES))
            has_begun = True
            note_open()
            async for piece in response.content.iter_any():
                now = time.monotonic()
                events, rest = split_events(rest + piece)
                for sse_id, data in events:
                    is_done |= data == DONE
                    if not is_done:
                        take(read_event(data, sse_id), now)
    except AttemptError as failure:
        return failure
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        return of_exception(error, has_begun)
    return None if is_done else AttemptError(BROKEN, "the stream ended without [DONE]", retryable=True)


def split_events(received: bytes) -> tuple[list[tuple[str | None, bytes]], bytes]:
    """The id and ``data`` of all whole events, and the bytes of the next one; lines end with LF or CRLF."""
    *events, rest = received.replace(b"\r\n", b"\n").split(b"\n\n")
    found = []
    for event in events:
        lines = event.split(b"\n")
        if data := _values(lines, b"data:"):
            ids = _values(lines, b"id:")
            found.append((ids[-1].decode(errors="replace") if ids else None, b"\n".join(data)))
    return found, rest


def _values(lines: list[bytes], field: bytes) -> list[bytes]:
    return [line[len(field) :].removeprefix(b" ") for line in lines if line.startswith(field)]


def read_event(data: bytes, sse_id: str | None) -> Event:
    """The event of its data; raises AttemptError if it is no chunk, or an error of the server."""
    try:
        event = decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AttemptError(BAD_EVENT, f"{error}: {data[:100]!r}", retryable=False) from error
    event.sse_id = sse_id  # a field of that name in the data does not count
    if event.error is not None:
        message = event.error.get("message", event.error) if isinstance(event.error, dict) else event.error
        raise AttemptError(ERROR_EVENT, str(message), retryable=True)
    return event


def of_status(status: int, headers: Mapping[str, str], body: bytes) -> AttemptError:
    """The failure of a status other than 200; a 5xx, and a 429 with Retry-After, may be sent again."""
    wait = retry_after(headers.get("Retry-After"))
    kind = TOO_MANY if status == 429 else f"HTTP {status}"
    return AttemptError(kind, error_message(body), status >= 500 or (status == 429 and wait is not None), status, wait)


def of_exception(error: Exception, has_begun: bool) -> AttemptError:
    """The failure of an exception of the HTTP client; ``has_begun``: the status of the answer had come."""
    message = f"{type(error).__name__}: {error}"[:MESSAGE_CHARS]
    if isinstance(error, TimeoutError):  # aiohttp's are subclasses
        return AttemptError(TIMEOUT, message, retryable=False)
    if isinstance(error, aiohttp.InvalidURL):
        return AttemptError("bad url", message, retryable=False)
    return AttemptError(BROKEN if has_begun else REFUSED, message, retryable=True)


def retry_after(value: str | None) -> float | None:
    """Seconds to wait according to a Retry-After header, which holds seconds or a date; None if it holds neither."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if seconds < float("inf") else None


def error_message(body: bytes) -> str:
    """The message in the body of an error in OpenAI's form; of another body, its text."""
    try:
        message = msgspec.json.decode(body)["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        message = body.decode(errors="replace")
    return str(message)[:MESSAGE_CHARS]
