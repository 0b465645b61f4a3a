"""Sends hostile requests and checks every answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec

from benchmarks.resilience.hostile_requests import HostileRequest

ANSWER_TIMEOUT_S = 60.0
PAUSE_S, PIECE, N_PIECES = 0.05, 64, 40  # of a slow upload: between pieces, bytes of a piece, pieces before the rest


@dataclass
class HostileOutcome:
    """The answers to hostile requests."""

    statuses: Counter[str] = field(default_factory=Counter)  # "none": the connection ended without an answer
    codes: Counter[str] = field(default_factory=Counter)  # of errors
    wrong: list[str] = field(default_factory=list)  # failed checks, with the request


async def send_all(url: str, requests: Sequence[HostileRequest], rate: float, outcome: HostileOutcome) -> None:
    """Send ``rate`` requests a second and add their answers to ``outcome``."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number, request in enumerate(requests):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            tasks.create_task(_check(url, request, outcome))


async def _check(url: str, request: HostileRequest, outcome: HostileOutcome) -> None:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            raw = await _exchange(url, request)
    except TimeoutError:
        outcome.wrong.append(f"no answer within {ANSWER_TIMEOUT_S:g} s: {request}")
        return
    except OSError:  # the server may close a connection whose request it has refused
        raw = b""
    head, _, body = raw.partition(b"\r\n\r\n")
    if head[9:12] == b"100":  # Continue: the answer follows
        head, _, body = body.partition(b"\r\n\r\n")
    status = head[9:12].decode("latin-1") or "none"
    outcome.statuses[status] += 1
    if problem := _find_problem(request, status, head, body, outcome.codes):
        outcome.wrong.append(f"{problem}: {request}")


async def _exchange(url: str, request: HostileRequest) -> bytes:
    """Return the bytes of the answer, as far as this client waits for them."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(request.head)
        sent = 0
        if request.kind == "slow":
            for sent in range(0, len(request.body), PIECE)[:N_PIECES]:
                writer.write(request.body[sent : sent + PIECE])
                await asyncio.sleep(PAUSE_S)
            sent += PIECE
        writer.write(request.body[sent:])
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        if request.kind == "short":
            await asyncio.sleep(PAUSE_S)
            return b""
        first = await reader.read(2000) if request.kind == "leave" else b""
        has_stream = first[9:10] == b"2"  # a refusal is read to its end
        return first if has_stream else first + await reader.read()
    finally:
        writer.transport.abort()


def _find_problem(request: HostileRequest, status: str, head: bytes, body: bytes, codes: Counter[str]) -> str:
    """Return what is wrong with an answer, or an empty text."""
    if status[:1] == "5":
        return f"status {status}, {body[:300]!r}"
    if status[:1] != "4" or request.method == "HEAD":
        return ""
    try:
        error = json.loads(body)["error"]
        codes[f"{status} {error['code']}"] += 1
        if not error["message"] or {"message", "type", "param", "code"} != error.keys():
            return f"an error of another form, {body[:300]!r}"
    except (ValueError, KeyError, TypeError):
        codes[f"{status} without body"] += 1
        # HAProxy (in HTML) and uvicorn refuse malformed HTTP before the application sees it.
        is_no_http = b"content-type: text/html" in head.lower() or body == b"Invalid HTTP request received."
        return "" if is_no_http else f"{status} is not in OpenAI's form, {head!r} {body[:300]!r}"
    if status == "400" and error["param"] is None and _has_bad_field(request, error["message"]):
        return f"400 names no field, {body[:300]!r}"
    return ""


def _has_bad_field(request: HostileRequest, message: str) -> bool:
    """Return whether a refusal must name a field: the body is a JSON object, and not as a whole too large or deep."""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return not message.startswith("the body has") and isinstance(msgspec.json.decode(request.body), dict)
    return False
