"""Requests that no client should send: made of the schemas, of bytes, of headers and of bad manners. Sends nothing.

One seed and number of requests make the same ones again. Values come from hypothesis, which knows the schemas; what is
done to them is drawn by the request's own number.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.resilience.hostile.values import SCHEMAS, values_of

MOST_VALUES = 150  # of each field
MOST_TOKENS = 8  # that a request which is accepted may ask for: what it costs is not what is measured
HUGE = (2**31, 2**63, 2**64, -(2**64), 10**400, 1e308, -0.0, 1e-320, 2**53 + 1)
ODD_TEXTS = (
    "",
    "\0",
    "\ud800",
    "\u202e",
    "🦊" * 300,
    "a" * 70_000,
    "{{ 7 * 7 }}",
    "{% for",
    "<|im_start|>",
    "\x1b[31m",
)
ODD: tuple[Any, ...] = (*HUGE, *ODD_TEXTS, None, True, [], {}, [[]], [None], {"": None}, -1, 0, 0.5, "1", [0] * 5000)
PATHS: tuple[str, ...] = (
    "/",
    "/v1",
    "/v1/models/%00",
    "/v1/models/../../etc/passwd",
    "/v1/models/" + "x" * 4000,
    "/%ff%fe",
    "/metrics/",
)
PATHS += (
    "/v1/chat/completions/",
    "//v1/completions",
    "/v1/completions?x=" + "y" * 2000,
    "/docs",
    "/openapi.json",
    "/health",
)
METHODS = ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "BREW", "post")
HEADERS: tuple[dict[str, str], ...] = (
    {"Content-Type": "text/plain"},
    {"Content-Type": "application/json; charset=utf-16"},
    {"Content-Type": "multipart/form-data; boundary=" + "x" * 500},
    {"X-Request-Id": "x" * 4000},
    {"X-Request-Id": "id\tid; \\x1b[31m"},
    {"Authorization": "Bearer " + "k" * 3000},
    {"Authorization": "Basic ====="},
    {"traceparent": "00-" + "f" * 32 + "-" + "0" * 16 + "-zz"},
    {"Accept-Encoding": "gzip;q=9, *;q=x", "Accept": "\x7f"},
    {"Content-Encoding": "gzip"},
    {"Expect": "100-continue"},
    {"X-Forwarded-For": "1.2.3.4, " * 200},
    {"Cookie": "a=" + "b" * 3000},
)
KINDS = {"schema": 45, "bytes": 20, "nested": 3, "header": 10, "path": 10, "short": 4, "slow": 3, "leave": 5}


@dataclass(frozen=True, slots=True)
class Hostile:
    """One request.

    ``kind`` is what is wrong with it; ``short`` sends less than it announces and leaves, ``slow`` sends its body in
    drops, ``leave`` asks for a stream and leaves after its first bytes.
    """

    number: int
    kind: str
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def head(self) -> bytes:
        """The bytes before the body."""
        size = len(self.body) + (1000 if self.kind == "short" else 0)
        fields = {"Host": "fuzz", "Content-Type": "application/json", "Connection": "close"} | dict(self.headers)
        lines = [f"{self.method} {self.path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items())]
        return "\r\n".join([*lines, f"Content-Length: {size}", "", ""]).encode("latin-1", "replace")

    def shown(self) -> str:
        """For people, who want to send it again."""
        return f"#{self.number} ({self.kind}) {self.head[:400]!r} {self.body[:800]!r}"


def hostile_requests(n: int, with_seed: int, model: str, headers: Mapping[str, str]) -> list[Hostile]:
    """``n`` requests; ``headers`` are those that a good client sends too, such as its key."""
    values = values_of(with_seed, min(MOST_VALUES, 20 + n // 40))
    return [_request(number, random.Random(f"{with_seed}:{number}"), values, model, headers) for number in range(n)]


def _request(
    number: int, chance: random.Random, values: dict[str, dict[str, list[Any]]], model: str, headers: Mapping[str, str]
) -> Hostile:
    kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
    path = chance.choice(list(SCHEMAS))
    method, more = "POST", dict(headers)
    if kind == "leave":
        path = "/v1/completions"
        fields: Any = _good(path, model) | {"stream": True, "max_tokens": 200, "ignore_eos": True}
    else:
        fields = _fields(chance, values[path], _good(path, model))
    body = json.dumps(fields).encode()
    if kind == "bytes":
        body = _damaged(chance, body)
    elif kind == "nested":
        depth = chance.choice((50, 1000, 100_000))
        body = body[:-1] + b',"x":' + b'[{"a":' * depth + b"0" + b"}]" * chance.choice((0, depth)) + b"}"
    elif kind == "header":
        more |= chance.choice(HEADERS)
    elif kind == "path":
        path, method = chance.choice((*PATHS, path)), chance.choice((*METHODS, "POST"))
    return Hostile(number, kind, method, path, more, body)


def _good(path: str, model: str) -> dict[str, Any]:
    """A body that is accepted, and costs little."""
    if path == "/detokenize":
        return {"tokens": [5, 6]}
    if path == "/tokenize":
        return {"prompt": "Snow falls"}
    prompt = {"messages": [{"role": "user", "content": "Snow?"}]} if "chat" in path else {"prompt": "Snow falls"}
    return {"model": model, "max_tokens": 2, **prompt}


def _fields(chance: random.Random, values: dict[str, list[Any]], good: dict[str, Any]) -> dict[str, Any]:
    """A good body of which one to four fields are not."""
    fields = dict(good)
    for name in chance.choices(list(values), k=chance.randint(1, 4)):
        how = chance.random()
        fields[name] = chance.choice(values[name]) if how < 0.6 else chance.choice(ODD)
        if how > 0.95:
            fields[chance.choice(ODD_TEXTS)[:50]] = chance.choice(ODD)
    if "max_tokens" in fields:
        limits = [fields.get("max_tokens"), fields.get("max_completion_tokens")]
        if any(isinstance(limit, int) and limit > MOST_TOKENS for limit in limits) or not isinstance(limits[0], int):
            fields["min_tokens"] = chance.choice((-1, 2**40, "x"))  # refused, whatever it allows
    return fields


def _damaged(chance: random.Random, body: bytes) -> bytes:
    """One to three changes of bytes."""
    for _ in range(chance.randint(1, 3)):
        at, length = chance.randrange(len(body) + 1), chance.choice((1, 1, 4, 64))
        change = chance.randrange(5)
        if change == 0:
            body = body[:at] + chance.randbytes(length) + body[at + length :]
        elif change == 1:
            body = body[:at] + body[at + length :]
        elif change == 2:
            body = body[:at] + body[at : at + length] * 3 + body[at:]
        elif change == 3:
            body = body[:at]
        else:
            body = (
                body[:at]
                + chance.choice((b"1" * 5000, b"\xff\xfe", b"NaN", b"-Infinity", b'"\\ud800"', b"1e999"))
                + body[at:]
            )
    return body
