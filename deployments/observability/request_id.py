"""The id of the request that a log line belongs to: the client's own, if it is fit for a log, or a drawn one."""

from __future__ import annotations

import re
import uuid
from contextvars import ContextVar

HEADER = "X-Request-Id"  # of requests and of their answers
FIT = re.compile(r"[!-~]{1,128}")  # printable, without spaces

current: ContextVar[str] = ContextVar("request_id", default="")
"""Of the request that the running task serves; "": none."""


def request_id_of(header: str | None) -> str:
    """The id that a client gave as ``X-Request-Id``, or a drawn one if it gave none that is fit for a log."""
    return header if header is not None and FIT.fullmatch(header) else uuid.uuid4().hex
