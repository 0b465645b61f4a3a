"""Builds requests that no client should send, from schemas, damaged bytes, odd headers and broken uploads.

A seed and a number of requests always give the same ones. Hypothesis draws values of the schemas' types; the request's
own number decides what is done to them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from app.api.requests.parsing import Strict
from app.api.requests.responses import ResponsesRequest
from app.api.requests.schemas import ChatCompletionRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

FieldValues: TypeAlias = dict[str, list[Any]]  # field -> values, most of which it accepts

ENDPOINTS: dict[str, tuple[type[Strict], dict[str, Any]]] = {  # with fields that are accepted, and cost little
    "/v1/chat/completions": (ChatCompletionRequest, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}),
    "/v1/completions": (CompletionRequest, {"prompt": "Snow falls", "max_tokens": 2}),
    "/v1/responses": (ResponsesRequest, {"input": "Snow falls", "max_output_tokens": 2}),
    "/tokenize": (TokenizeRequest, {"prompt": "Snow falls"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [5, 6]}),
}
TOKEN_LIMITS = {"max_tokens", "max_completion_tokens", "max_output_tokens"}
KEYS = ("type", "properties", "items", "enum", "$ref", "anyOf", "x")  # of JSON Schema, and another one
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(("string", "object", "#"))
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)
KINDS = {"schema": 45, "bytes": 20, "nested": 3, "header": 10, "path": 10, "short": 4, "slow": 3, "leave": 5}
MAX_VALUES = 150  # of each field
MAX_ACCEPTED_TOKENS = 8  # generated for an accepted request: its cost is not measured
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
ODD_BYTES = (b"1" * 5000, b"\xff\xfe", b"NaN", b"-Infinity", b'"\\ud800"', b"1e999")
MODEL_PATHS = ("/v1/models/%00", "/v1/models/../../etc/passwd", "/v1/models/" + "x" * 4000)
QUERY = "/v1/completions?x=" + "y" * 2000
PATHS = ("/", "/v1", "/%ff%fe", "/metrics/", "/v1/chat/completions/", "//v1/completions", "/docs", "/openapi.json")
METHODS = ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "BREW", "post")
HEADERS = {
    "Content-Type": ("text/plain", "application/json; charset=utf-16", "multipart/form-data; boundary=" + "x" * 500),
    "X-Request-Id": ("x" * 4000, "id\tid; \\x1b[31m"),
    "Authorization": ("Bearer " + "k" * 3000, "Basic ====="),
    "traceparent": ("00-" + "f" * 32 + "-" + "0" * 16 + "-zz",),
    "Accept-Encoding": ("gzip;q=9, *;q=x", "\x7f"),
    "Content-Encoding": ("gzip",),
    "Expect": ("100-continue",),
    "X-Forwarded-For": ("1.2.3.4, " * 200,),
    "Cookie": ("a=" + "b" * 3000,),
}


@dataclass(frozen=True, slots=True)
class HostileRequest:
    """A request, and how it is sent.

    Its ``kind`` says what is wrong. ``short`` sends less than it announces and leaves, ``slow`` sends its body in small
    pieces, ``leave`` asks for a stream and leaves after its first bytes.
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

    def __str__(self) -> str:
        return f"#{self.number} ({self.kind}) {self.head[:400]!r} {self.body[:800]!r}"


def build_requests(n: int, with_seed: int, model: str, headers: Mapping[str, str]) -> list[HostileRequest]:
    """Return ``n`` requests; ``headers`` are those that a good client sends too, such as its key."""
    n_values = min(MAX_VALUES, 20 + n // 40)
    values = {
        path: {name: _draw(strategy, with_seed, n_values) for name, strategy in _build_fields(schema).items()}
        for path, (schema, _) in ENDPOINTS.items()
    }
    return [
        _build_request(number, random.Random(f"{with_seed}:{number}"), values, model, headers) for number in range(n)
    ]


def _build_fields(schema: type[Strict]) -> dict[str, st.SearchStrategy[Any]]:
    """Return values of every field of a schema, by its name in a body."""
    return {info.alias or name: _build_strategy(info.annotation) for name, info in schema.model_fields.items()}


def _build_strategy(annotation: Any) -> st.SearchStrategy[Any]:
    """Return values of a type: for ``Any`` any JSON, for a schema objects with some of its fields."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return JSON
    if origin is Annotated:  # hypothesis ignores pydantic's constraints
        return _build_strategy(arguments[0])
    if origin in (Union, UnionType):
        return st.one_of([_build_strategy(one) for one in arguments])
    if origin is list:
        return st.lists(_build_strategy(arguments[0]))
    if origin is dict:
        return st.dictionaries(*map(_build_strategy, arguments))
    if origin is None and issubclass(annotation, Strict):
        return st.fixed_dictionaries({}, optional=_build_fields(annotation))
    return st.from_type(annotation)


def _draw(strategy: st.SearchStrategy[Any], with_seed: int, n: int) -> list[Any]:
    drawn: list[Any] = []

    @seed(with_seed)
    @settings(
        max_examples=n, database=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck], deadline=None
    )
    @given(strategy)
    def keep(value: Any) -> None:
        drawn.append(value)

    keep()
    return drawn


def _build_request(
    number: int, chance: random.Random, values: Mapping[str, FieldValues], model: str, headers: Mapping[str, str]
) -> HostileRequest:
    kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
    path = "/v1/completions" if kind == "leave" else chance.choice(list(ENDPOINTS))
    method, sent, fields = "POST", dict(headers), {"model": model, **ENDPOINTS[path][1]}
    if kind == "leave":
        fields |= {"stream": True, "max_tokens": 200, "ignore_eos": True}
    else:
        _spoil_fields(chance, values[path], fields)
    body = json.dumps(fields).encode()
    if kind == "bytes":
        body = _damage_bytes(chance, body)
    elif kind == "nested":
        depth = chance.choice((50, 1000, 100_000))
        body = body[:-1] + b',"x":' + b'[{"a":' * depth + b"0" + b"}]" * chance.choice((0, depth)) + b"}"
    elif kind == "header":
        name = chance.choice(list(HEADERS))
        sent[name] = chance.choice(HEADERS[name])
    elif kind == "path":
        path, method = chance.choice((*PATHS, *MODEL_PATHS, QUERY, path)), chance.choice((*METHODS, "POST"))
    return HostileRequest(number, kind, method, path, sent, body)


def _spoil_fields(chance: random.Random, values: FieldValues, fields: dict[str, Any]) -> None:
    """Replace one to four fields."""
    for name in chance.choices(list(values), k=chance.randint(1, 4)):
        how = chance.random()
        fields[name] = chance.choice(values[name]) if how < 0.6 else chance.choice(ODD)
        if how > 0.95:
            fields[chance.choice(ODD_TEXTS)[:50]] = chance.choice(ODD)
    limits = [fields[name] for name in TOKEN_LIMITS & fields.keys()]
    if not all(isinstance(limit, int) and limit <= MAX_ACCEPTED_TOKENS for limit in limits):
        fields["min_tokens"] = chance.choice((-1, 2**40, "x"))  # makes the server refuse the request


def _damage_bytes(chance: random.Random, body: bytes) -> bytes:
    """Return a body with one to three places overwritten, cut out, repeated, cut off or extended."""
    for _ in range(chance.randint(1, 3)):
        at, length = chance.randrange(len(body) + 1), chance.choice((1, 1, 4, 64))
        before, part, after = body[:at], body[at : at + length], body[at + length :]
        inserted = chance.choice((chance.randbytes(length), b"", 4 * part, chance.choice(ODD_BYTES) + part))
        body = before if chance.random() < 0.2 else before + inserted + after
    return body
