"""Log lines of one form in every process: ours, those of Ray Serve and of uvicorn, as text or as JSON.

The keys of JSON are those of Ray's own JSON lines, so that one parser reads all files of a server. In a Serve replica
lines go to the file that Serve keeps for it, in any other process to stderr, of which Ray makes a file.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from dataclasses import dataclass
from logging.handlers import MemoryHandler
from typing import Any

from deployments.observability import request_id

TEXT, JSON = "text", "json"  # forms of a line
LEVELS = ("debug", "info", "warning", "error")
OURS = ("app", "deployments", "engine", "retrieval_store", "speculators", "spectra")  # loggers that heed the level
SERVE = "ray.serve"

# Attributes that are no field of a line: logging's own, and switches that Serve sets for its handlers.
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
    "request_id",
    "log_to_stderr",
    "serve_access_log",
    "skip_context_filter",
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # what could end a line or colour a terminal
_CONTROL_IN_TRACE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")  # newlines and tabs stay


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How a process logs."""

    format: str = TEXT
    level: str = "info"  # of LEVELS; lines below it are left out
    access: bool = True  # a line for every request that was served
    prompts: bool = False  # such a line holds the beginning of the prompt


class LineFormatter(logging.Formatter):
    """One line per record: time, level, process, logger, message, and the fields given as ``extra``.

    Args:
        process: what the process is, such as "Router".
        is_json: an object per line, or text.
    """

    def __init__(self, process: str, is_json: bool) -> None:
        super().__init__()
        self._process = process
        self._is_json = is_json

    def format(self, record: logging.LogRecord) -> str:
        """The line; control characters are escaped, because some of it may come from clients."""
        record.message = record.getMessage()  # as every formatter leaves it
        fields = {k: v for k, v in vars(record).items() if k not in _USUAL and k[0] != "_" and v is not None}
        request = getattr(record, "request_id", "") or request_id.current.get()
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
        shown = "".join(f" {name}={_shown(value)}" for name, value in fields.items())
        line = head + _CONTROL.sub(_escaped, record.message + shown)
        return f"{line}\n{_CONTROL_IN_TRACE.sub(_escaped, trace)}" if trace else line


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if isinstance(value, str) and text and not set(text) & set(' "=') else json.dumps(value, default=str)


def _escaped(found: re.Match[str]) -> str:
    return f"\\x{ord(found.group()):02x}"


def configure(options: LogOptions, process: str) -> None:
    """Have this process log as ``options`` say; called again, the new ones hold.

    Args:
        options: of the application.
        process: what the process is, such as "Router", for every line.
    """
    level = logging.getLevelName(options.level.upper())
    formatter = LineFormatter(process, options.format == JSON)
    serve, root = logging.getLogger(SERVE), logging.getLogger()
    for handler in (*serve.handlers, *logging.getLogger("ray").handlers):
        _format(handler, formatter)
    files: list[logging.Handler] = [one for one in serve.handlers if isinstance(one, MemoryHandler)]
    if not files:  # no Serve replica: there stderr would be a way back into Serve's own logger
        files = [logging.StreamHandler(sys.stderr)]
        files[0].setFormatter(formatter)
    root.handlers[:] = files
    root.setLevel(max(level, logging.WARNING))  # libraries tell much that concerns only their own authors
    for name in (*OURS, SERVE):
        logging.getLogger(name).setLevel(level)


def _format(handler: logging.Handler, formatter: logging.Formatter) -> None:
    handler.setFormatter(formatter)
    if isinstance(handler, MemoryHandler):
        handler.capacity = 1  # for speed Serve keeps a thousand lines back, which is an hour of a quiet server
        if handler.target is not None:
            handler.target.setFormatter(formatter)
