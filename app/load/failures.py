"""Why an attempt failed, and whether the request may be sent again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import aiohttp
import msgspec

from app.load.records import BROKEN

REFUSED, TIMEOUT, BAD_EVENT, TOO_MANY = "no connection", "timeout", "bad event", "429"
MESSAGE_CHARS = 120


@dataclass(eq=False)
class AttemptError(Exception):
    """An attempt did not bring the whole answer."""

    kind: str  # the word under which the report counts it
    message: str  # of the server or the socket
    retryable: bool  # whether the same request may succeed later
    status: int | None = None  # of HTTP, if there was an answer
    retry_after: float | None = None  # seconds the server asked to wait


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


def retry_after(value: str | None, now: float | None = None) -> float | None:
    """Seconds to wait according to a Retry-After header, which holds seconds or a date; None if it holds neither.

    A date counts from ``now``, in seconds since 1970; None: from the clock's time.
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - (time.time() if now is None else now)
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
