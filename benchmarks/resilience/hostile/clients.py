"""Clients that send hostile requests, and what must hold of every answer."""

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

from benchmarks.resilience.hostile.requests import Hostile

ANSWER_S, DROP_S = 60.0, 0.05


@dataclass
class HostileOutcome:
    """What the hostile requests came to."""

    statuses: Counter[str] = field(default_factory=Counter)  # by status; "none": the connection ended without one
    codes: Counter[str] = field(default_factory=Counter)  # of errors
    wrong: list[str] = field(default_factory=list)  # with the request


async def send_all(url: str, hostile: Sequence[Hostile], rate: float, outcome: HostileOutcome) -> None:
    """Send the requests, ``rate`` a second, and judge every answer."""
    began, tasks = time.monotonic(), []
    for number, request in enumerate(hostile):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        tasks.append(asyncio.create_task(_judge(url, request, outcome)))
    await asyncio.gather(*tasks)


async def _judge(url: str, request: Hostile, outcome: HostileOutcome) -> None:
    try:
        async with asyncio.timeout(ANSWER_S):
            raw = await _exchange(url, request)
    except TimeoutError:
        outcome.wrong.append(f"no answer within {ANSWER_S:g} s: {request.shown()}")
        return
    except OSError:  # the server may close a connection whose request it has refused
        raw = b""
    head, _, body = raw.partition(b"\r\n\r\n")
    if head[9:12] == b"100":  # Continue: the answer follows
        head, _, body = body.partition(b"\r\n\r\n")
    status = head[9:12].decode("latin-1") or "none"
    outcome.statuses[status] += 1
    if complaint := _complaint(request, status, head, body, outcome.codes):
        outcome.wrong.append(f"{complaint}: {request.shown()}")


async def _exchange(url: str, request: Hostile) -> bytes:
    """The bytes of the answer, as far as this client waits for them."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(request.head)
        if request.kind == "slow":
            for at in range(0, len(request.body), 64)[:40]:
                writer.write(request.body[at : at + 64])
                await asyncio.sleep(DROP_S)
            writer.write(request.body[40 * 64 :])
        else:
            writer.write(request.body)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        if request.kind == "short":
            await asyncio.sleep(DROP_S)
            return b""
        first = await reader.read(2000) if request.kind == "leave" else b""
        has_left = first[9:10] == b"2"  # of a refusal it reads all
        return first if has_left else first + await reader.read()
    finally:
        writer.transport.abort()


def _complaint(request: Hostile, status: str, head: bytes, body: bytes, codes: Counter[str]) -> str:
    """What is wrong with an answer; "" if nothing is."""
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
        return "" if _is_no_http(head, body) else f"{status} is not in OpenAI's form, {head!r} {body[:300]!r}"
    return (
        f"400 names no field, {body[:300]!r}"
        if status == "400" and error["param"] is None and _has_field(request, error["message"])
        else ""
    )


def _is_no_http(head: bytes, body: bytes) -> bool:
    """Whether HAProxy (in HTML) or uvicorn has refused what is not HTTP; the application has not seen it."""
    return b"content-type: text/html" in head.lower() or body == b"Invalid HTTP request received."


def _has_field(request: Hostile, message: str) -> bool:
    """Whether the refusal must name one: it is neither of the body as a whole nor of what is no JSON object."""
    if message.startswith("the body has"):
        return False
    try:
        return isinstance(msgspec.json.decode(request.body), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
