"""One log format for every process: our lines, Ray Serve's and uvicorn's, as text or JSON, with the request id.

The JSON keys are those of Ray's own JSON lines, so one parser reads all log files of a server. A Serve replica logs to
the file that Serve keeps for it. Any other process logs to stderr, which Ray redirects to a file.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import uuid
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass
from logging.handlers import MemoryHandler
from typing import Any

TEXT, JSON = "text", "json"  # formats of a line
LEVELS = ("debug", "info", "warning", "error")
OURS = ("app", "deployments", "engine", "retrieval_store", "speculators", "spectra")  # loggers that heed the level
SERVE = "ray.serve"
REQUEST_ID_HEADER = "X-Request-Id"  # of requests and of responses

current_request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Id of the request that the running task serves; "" outside of requests."""

_VALID_ID = re.compile(r"[!-~]{1,128}")  # printable, without spaces
# Record attributes that are not fields of a line: logging's own, and switches that Serve sets for its handlers.
_NO_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
    "request_id",
    "log_to_stderr",
    "serve_access_log",
    "skip_context_filter",
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # can end a line or colour a terminal
_CONTROL_IN_TRACE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")  # newlines and tabs stay


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Log format and level of a process."""

    format: str = TEXT
    level: str = "info"  # one of LEVELS; lines below it are dropped
    access: bool = True  # log a line for every request served
    prompts: bool = False  # include the beginning of the prompt in that line


def choose_request_id(header: str | None) -> str:
    """The client's ``X-Request-Id`` if it is safe to log, else a random id."""
    return header if header is not None and _VALID_ID.fullmatch(header) else uuid.uuid4().hex


class LineFormatter(logging.Formatter):
    """Formats a record as one line: time, level, process, logger, message, and the fields passed as ``extra``.

    Args:
        process: name of the process, such as "Router".
        is_json: write a JSON object per line instead of text.
    """

    def __init__(self, process: str, is_json: bool) -> None:
        super().__init__()
        self._process = process
        self._is_json = is_json

    def format(self, record: logging.LogRecord) -> str:
        """The line, with control characters escaped: clients may have sent some of it."""
        record.message = record.getMessage()  # every formatter sets it
        fields = {k: v for k, v in vars(record).items() if k not in _NO_FIELDS and k[0] != "_" and v is not None}
        request = getattr(record, "request_id", "") or current_request_id.get()
        if request:
            fields = {"request_id": request} | fields
        trace = self.formatException(record.exc_info) if record.exc_info else record.exc_text or ""
        return self._as_json(record, fields, trace) if self._is_json else self._as_text(record, fields, trace)

    def _as_json(self, record: logging.LogRecord, fields: dict[str, Any], trace: str) -> str:
        line = {
            "asctime": self.formatTime(record),
            "levelname": record.levelname,
            "message": record.message,
            "name": record.name,
            "filename": record.filename,
            "lineno": record.lineno,
            "process": record.process,
            "component": self._process,
            "timestamp_ns": int(record.created * 1e9),
        }
        return json.dumps(line | ({"exc_text": trace} if trace else {}) | fields, default=str)

    def _as_text(self, record: logging.LogRecord, fields: dict[str, Any], trace: str) -> str:
        head = f"{self.formatTime(record)} {record.levelname} {self._process} {record.process} {record.name} -- "
        shown = "".join(f" {name}={_quote(value)}" for name, value in fields.items())
        line = head + _CONTROL.sub(_escape, record.message + shown)
        return f"{line}\n{_CONTROL_IN_TRACE.sub(_escape, trace)}" if trace else line


def _quote(value: Any) -> str:
    """The value as JSON; a string without spaces, quotes and equals signs stays bare."""
    is_bare = isinstance(value, str) and value and not set(value) & set(' "=')
    return value if is_bare else json.dumps(value, default=str)


def _escape(found: re.Match[str]) -> str:
    return f"\\x{ord(found.group()):02x}"


def configure(options: LogOptions, process: str) -> None:
    """Set up logging of this process; a later call replaces the options.

    Args:
        options: of the application.
        process: name of the process in every line, such as "Router".
    """
    level = logging.getLevelName(options.level.upper())
    formatter = LineFormatter(process, options.format == JSON)
    serve, root = logging.getLogger(SERVE), logging.getLogger()
    for handler in (*serve.handlers, *logging.getLogger("ray").handlers):
        _set_formatter(handler, formatter)
    files: list[logging.Handler] = [one for one in serve.handlers if isinstance(one, MemoryHandler)]
    if not files:  # not a Serve replica, where stderr would lead back into Serve's own logger
        files = [logging.StreamHandler(sys.stderr)]
        files[0].setFormatter(formatter)
    root.handlers[:] = files
    root.setLevel(max(level, logging.WARNING))  # libraries log much that concerns only their authors
    for name in (*OURS, SERVE):
        logging.getLogger(name).setLevel(level)


def _set_formatter(handler: logging.Handler, formatter: logging.Formatter) -> None:
    handler.setFormatter(formatter)
    if isinstance(handler, MemoryHandler):
        handler.capacity = 1  # Serve buffers a thousand lines, which is an hour of a quiet server
        if handler.target is not None:
            handler.target.setFormatter(formatter)


class LogRateLimiter:
    """Admits the first ``max_lines`` lines of a kind per span of ``seconds`` and counts the others.

    Needs a running event loop as soon as it drops a line.

    Args:
        max_lines: of one kind in one span.
        seconds: length of a span, which begins with its first line.
        on_dropped: called at the end of a span with the kind and the number of dropped lines, if there are any.
    """

    def __init__(self, max_lines: int, seconds: float, on_dropped: Callable[[Hashable, int], None]) -> None:
        self._max_lines = max_lines
        self._seconds = seconds
        self._on_dropped = on_dropped
        self._spans: dict[Hashable, tuple[float, int]] = {}  # kind -> end of its span, lines so far

    def admits(self, kind: Hashable, now: float) -> bool:
        """Whether to write a line of ``kind`` at ``now`` (seconds of a steady clock). Kinds are kept: use few."""
        end, lines = self._spans.get(kind, (now, 0))
        if now >= end and lines <= self._max_lines:  # else the timer that reports dropped lines is still to run
            end, lines = now + self._seconds, 0
        self._spans[kind] = (end, lines + 1)
        if lines == self._max_lines:
            asyncio.get_running_loop().call_later(max(0.0, end - now), self._end_span, kind)
        return lines < self._max_lines

    def _end_span(self, kind: Hashable) -> None:
        _, lines = self._spans.pop(kind)
        self._on_dropped(kind, lines - self._max_lines)
