"""Why an attempt failed, and whether the request may be sent again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import aiohttp
import msgspec

from app.load.records import BROKEN

REFUSED, TIMEOUT, BAD_EVENT, TOO_MANY = "no connection", "timeout", "bad event", "429"
MESSAGE_CHARS = 120


class AttemptError(Exception):
    """An attempt did not bring the whole answer.

    Args:
        kind: the word under which the report counts it.
        message: of the server or the socket.
        retryable: whether the same request may succeed later.
        status: HTTP status, if there was an answer.
        retry_after: seconds the server asked to wait.
    """

    def __init__(
        self, kind: str, message: str, retryable: bool, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retryable = retryable
        self.status = status
        self.retry_after = retry_after


def of_status(status: int, headers: Mapping[str, str], body: bytes) -> AttemptError:
    """The failure of a status other than 200; a 5xx, and a 429 with Retry-After, may be sent again."""
    wait = retry_after(headers.get("Retry-After"))
    kind = TOO_MANY if status == 429 else f"HTTP {status}"
    return AttemptError(kind, error_message(body), status >= 500 or (status == 429 and wait is not None), status, wait)


def of_exception(error: Exception, has_begun: bool) -> AttemptError:
    """The failure of an exception of the HTTP client.

    Args:
        has_begun: whether the status of the answer had come.
    """
    message = f"{type(error).__name__}: {error}"[:MESSAGE_CHARS]
    if isinstance(error, TimeoutError):  # aiohttp's are subclasses
        return AttemptError(TIMEOUT, message, retryable=False)
    if isinstance(error, aiohttp.InvalidURL):
        return AttemptError("bad url", message, retryable=False)
    return AttemptError(BROKEN if has_begun else REFUSED, message, retryable=True)


def retry_after(value: str | None, now: float | None = None) -> float | None:
    """Seconds to wait according to a Retry-After header, which holds seconds or a date; None if it holds neither.

    Args:
        now: seconds since 1970, from which a date counts; None: the clock's.
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
        fields = msgspec.json.decode(body)
        message = fields["error"]["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        message = body.decode(errors="replace")
    return str(message)[:MESSAGE_CHARS]
