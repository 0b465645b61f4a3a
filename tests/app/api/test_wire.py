"""What the schemas accept reaches the router as it was sent, and so does everything else on the submission channel."""

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
from app.api.requests.token_schemas import DetokenizeRequest, TokenizeRequest
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
    "max_completion_tokens": st.none(),
    "min_tokens": st.integers(0, 3),
    "stop_token_ids": st.lists(IDS, max_size=64),
    "n": st.integers(1, 16),
    "stream": st.just(True),
    "tools": st.just([]),
    "tool_choice": st.sampled_from(["auto", "none"]),
    "chat_template_kwargs": st.just({}),
    "reasoning_effort": st.none(),
    "tool_calls": st.just([]),
    "tool_call_id": st.none(),
    "reasoning_content": st.none(),
    "role": st.sampled_from(["system", "developer", "user", "assistant"]),
    "allowed_token_ids": st.none() | st.lists(IDS, min_size=1, max_size=9),
    "bad_words": st.lists(st.text("ab c", min_size=1, max_size=5), max_size=3),
    "metadata": st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3),
    "response_format": st.sampled_from([None, {"type": "text"}, {"type": "json_object"}]),
    "structured_outputs": st.sampled_from([None, {"regex": "a+"}, {"json": {"type": "integer"}}]),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), st.none()),
    "truncate_prompt_tokens": st.none() | st.sampled_from([-1, 1, 200, 2**31 - 1]),
}
ANY_BIAS = {"logit_bias": st.dictionaries(st.integers(0, 2**31 - 1).map(str), st.floats(allow_nan=False), max_size=4)}
QUIET = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("schema", [ChatCompletionRequest, CompletionRequest])
def test_a_body_is_refused_or_reaches_the_router_unchanged(backend, schema) -> None:
    converter = Converter(backend.tokenizer, backend.model_card, Settings())
    arrived = 0

    @QUIET
    @given(values_of(schema.model_json_schema(), SPECIAL))
    def check(fields: dict[str, Any]) -> None:
        nonlocal arrived
        try:
            wanted = parse(schema, json.dumps(fields).encode(), 10**6)
            requests, _ = converter.requests(wanted, "response", IN_CLUSTER)
        except (RequestError, AccessError):
            return
        submits = [Submit(i, request) for i, request in enumerate(requests)]
        assert decode_commands(encode([encode_message(submit) for submit in submits])) == submits
        arrived += 1

    check()
    assert arrived


@pytest.mark.parametrize("schema", [TokenizeRequest, DetokenizeRequest])
def test_a_text_is_refused_or_becomes_ids_and_text_again(backend, schema) -> None:
    converter = Converter(backend.tokenizer, backend.model_card, Settings())

    @QUIET
    @given(values_of(schema.model_json_schema(), SPECIAL))
    def check(fields: dict[str, Any]) -> None:
        with contextlib.suppress(RequestError):
            wanted = parse(schema, json.dumps(fields).encode(), 10**6)
            if isinstance(wanted, DetokenizeRequest):
                assert msgspec.json.encode(converter.decode(wanted.tokens))
            elif wanted.messages is not None:
                assert converter.encode_chat(wanted.messages)
            else:
                ids = converter.encode(wanted.prompt or "", add_special_tokens=False)
                assert converter.decode(ids) == wanted.prompt

    check()


@QUIET
@given(messages=st.lists(values_of(msgspec.json.schema(Command), ANY_BIAS), max_size=4))
def test_every_command_arrives_as_it_was_sent(messages: list[Any]) -> None:
    commands = msgspec.convert(messages, list[Command], strict=False)
    assert decode_commands(encode([encode_message(command) for command in commands])) == commands


@QUIET
@given(messages=st.lists(values_of(msgspec.json.schema(Event)), max_size=4))
def test_every_event_arrives_as_it_was_sent(messages: list[Any]) -> None:
    events = msgspec.convert(messages, list[Event])
    assert decode_events(encode([encode_message(event) for event in events])) == events


@QUIET
@given(fields=values_of(msgspec.json.schema(StageFrame), {}), step=st.binary(max_size=20))
def test_every_frame_between_stages_arrives_as_it_was_sent(fields: list[Any], step: bytes) -> None:
    frame = msgspec.structs.replace(msgspec.convert(["", *fields[1:]], StageFrame), step=step)
    assert decode_frame(msgspec.msgpack.encode(frame)) == frame


@QUIET
@given(
    raw=st.binary(max_size=60)
    | st.recursive(st.none() | st.integers(-5, 300) | st.text(max_size=3), st.lists).map(msgspec.msgpack.encode)
)
@pytest.mark.parametrize("decode", [decode_commands, decode_events, decode_frame])
def test_what_is_no_message_is_a_decode_error_and_nothing_else(decode: Callable[[bytes], object], raw: bytes) -> None:
    try:
        decoded = decode(raw)
    except msgspec.DecodeError:
        return
    assert decode(raw) == decoded
    assert isinstance(decoded, list | StageFrame)
