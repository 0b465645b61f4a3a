"""Requests that the schemas accept, and all other messages to the router and between stages, arrive as sent."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.access.caller import IN_CLUSTER
from app.access.errors import AccessError
from app.api.requests.convert import Converter
from app.api.requests.parsing import parse
from app.api.requests.schemas import ChatCompletionRequest, CompletionRequest
from app.api.service import Settings
from deployments.pipeline.frames import StageFrame, decode_frame
from deployments.submission.protocol import (
    Command,
    Event,
    Submit,
    decode_commands,
    decode_events,
    encode,
    encode_message,
)
from engine.errors import RequestError
from tests.app.conftest import ScriptedBackend
from tests.support.json_schema import values_of

IDS = st.integers(0, 399)
SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    "model": st.just("tiny"),
    "namespace": st.sampled_from(["a", "team-1.x", "x" * 128, None, "/"]),
    "logit_bias": st.dictionaries(st.sampled_from(["0", "359", "2147483647", "05"]), st.floats(-100, 100), max_size=4),
    "stop": st.lists(st.text(min_size=1, max_size=5) | st.just("\U0001f98a" * 1024), max_size=16) | st.text(max_size=3),
    "prompt": st.text(max_size=20) | st.lists(IDS, max_size=9) | st.lists(st.lists(IDS, min_size=1), max_size=4),
    "seed": st.integers(-(2**64), 2**65) | st.sampled_from([2**64 - 1, -(2**63)]),
    "max_tokens": st.none() | st.integers(1, 200),
    "min_tokens": st.integers(0, 3),
    "stop_token_ids": st.lists(IDS, max_size=64),
    "n": st.integers(1, 16),
    "stream": st.just(True),
    "tools": st.just([]),
    "tool_calls": st.just([]),
    "tool_choice": st.sampled_from(["auto", "none"]),
    "chat_template_kwargs": st.just({}),
    "role": st.sampled_from(["system", "developer", "user", "assistant"]),
    "allowed_token_ids": st.none() | st.lists(IDS, min_size=1, max_size=9),
    "bad_words": st.lists(st.text("ab c", min_size=1, max_size=5), max_size=3),
    "metadata": st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3),
    "response_format": st.sampled_from([None, {"type": "text"}, {"type": "json_object"}]),
    "structured_outputs": st.sampled_from([None, {"regex": "a+"}, {"json": {"type": "integer"}}]),
    "truncate_prompt_tokens": st.none() | st.sampled_from([-1, 1, 200, 2**31 - 1]),
}
ABSENT = ("max_completion_tokens", "reasoning_effort", "reasoning_content", "tool_call_id")
ABSENT += ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
SPECIAL |= dict.fromkeys(ABSENT, st.none())
ANY_BIAS = {"logit_bias": st.dictionaries(st.integers(0, 2**31 - 1).map(str), st.floats(allow_nan=False), max_size=4)}
QUIET = settings(suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("schema", [ChatCompletionRequest, CompletionRequest])
def test_a_body_is_refused_or_arrives_unchanged(backend: ScriptedBackend, schema: Any) -> None:
    converter = Converter(backend.tokenizer, backend.model_card, Settings())
    arrived = 0

    @QUIET
    @given(values_of(schema.model_json_schema(), SPECIAL))
    def check(fields: dict[str, Any]) -> None:
        nonlocal arrived
        with contextlib.suppress(RequestError, AccessError):
            body = parse(schema, json.dumps(fields).encode(), 10**6)
            requests, _ = converter.requests(body, "response", IN_CLUSTER)
            submits = [Submit(i, request) for i, request in enumerate(requests)]
            assert decode_commands(encode([encode_message(submit) for submit in submits])) == submits
            arrived += 1

    check()
    assert arrived


@pytest.mark.parametrize(
    ("kind", "special", "decode"), [(Command, ANY_BIAS, decode_commands), (Event, {}, decode_events)]
)
def test_commands_and_events_arrive_as_sent(kind: Any, special: Any, decode: Callable[[bytes], object]) -> None:
    @QUIET
    @given(st.lists(values_of(msgspec.json.schema(kind), special), max_size=4))
    def check(values: list[Any]) -> None:
        messages = msgspec.convert(values, list[kind], strict=False)
        assert decode(encode([encode_message(message) for message in messages])) == messages

    check()


@given(
    raw=st.binary(max_size=60)
    | st.recursive(st.none() | st.integers(-5, 300) | st.text(max_size=3), st.lists).map(msgspec.msgpack.encode)
)
@pytest.mark.parametrize("decode", [decode_commands, decode_events, decode_frame])
def test_bytes_that_are_not_a_message_are_a_decode_error(decode: Callable[[bytes], object], raw: bytes) -> None:
    try:
        decoded = decode(raw)
    except msgspec.DecodeError:
        return
    assert decode(raw) == decoded
    assert isinstance(decoded, list | StageFrame)
