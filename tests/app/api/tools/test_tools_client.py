"""Calls of tools and reasoning, through the official client and a real server."""

from __future__ import annotations

import json
import re

import httpx
import pytest

from tests.app.api.tools.conftest import client_of, edge_of
from tests.app.conftest import listening
from tests.support import chat_templates
from tests.support.chat_templates import OF_FAMILY
from tests.support.recorded_calls import RECORDED, tagged

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("get_weather", "search", "now")
]
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}


CASES = [
    (template, recorded)
    for family, template in OF_FAMILY.values()
    for recorded in RECORDED.values()
    if recorded.family == family and (not recorded.reasoning or "think" in template)
]


@pytest.mark.parametrize(("template", "recorded"), CASES, ids=lambda value: getattr(value, "text", "")[:30])
def test_calls_are_the_same_whole_and_streamed(template, recorded) -> None:
    with client_of(template, recorded.text) as client:
        whole = client.chat.completions.create(**CHAT, tools=TOOLS)
        with client.chat.completions.create(**CHAT, tools=TOOLS, stream=True) as stream:
            chunks = list(stream)
    [choice] = whole.choices
    calls = choice.message.tool_calls or []
    assert tuple((call.function.name, call.function.arguments) for call in calls) == recorded.calls
    has_think = "</think>" in template or "<think>" not in recorded.text
    assert (choice.message.content or "") == recorded.content if has_think else True
    assert choice.finish_reason == ("tool_calls" if recorded.calls else "stop")
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == (choice.message.content or "")
    assert (deltas[0].role, chunks[-1].choices[0].finish_reason) == ("assistant", choice.finish_reason)
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    streamed: list[list[str]] = []
    for call in (call for delta in deltas for call in delta.tool_calls or []):
        if call.id is not None:
            assert (call.type, call.function.arguments, call.index) == ("function", "", len(streamed))
            streamed.append([call.function.name, ""])
        else:
            assert call.index == len(streamed) - 1
            streamed[-1][1] += call.function.arguments
    assert tuple(map(tuple, streamed)) == recorded.calls


def test_the_clients_own_stream_helper_puts_calls_together() -> None:
    recorded = RECORDED["qwen, text and two calls"]
    with (
        client_of(chat_templates.QWEN_2_5, recorded.text) as client,
        client.chat.completions.stream(**CHAT, tools=TOOLS) as stream,
    ):
        message = stream.get_final_completion().choices[0].message
    assert message.content == recorded.content
    assert tuple((call.function.name, call.function.arguments) for call in message.tool_calls) == recorded.calls


def test_content_is_null_beside_calls_and_the_answer_can_be_sent_back() -> None:
    with client_of(chat_templates.QWEN_2_5, tagged("now", "{}")) as client:
        message = client.chat.completions.create(**CHAT, tools=TOOLS).choices[0].message
        assert message.content is None
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "noon"}
        again = client.chat.completions.create(**CHAT | {"messages": [*CHAT["messages"], message, result]}, tools=TOOLS)
    assert again.choices[0].finish_reason == "tool_calls"


def test_without_tools_or_with_choice_none_a_call_is_text() -> None:
    text = tagged("now", "{}")
    with client_of(chat_templates.QWEN_2_5, text) as client:
        for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            [choice] = client.chat.completions.create(**CHAT, **more).choices
            assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (text, None, "stop")


def test_calls_that_are_not_parallel_are_one() -> None:
    recorded = RECORDED["mistral nemo, two in a list"]
    with client_of(chat_templates.MISTRAL, recorded.text) as client:
        [choice] = client.chat.completions.create(**CHAT, tools=TOOLS, parallel_tool_calls=False).choices
    assert [call.function.name for call in choice.message.tool_calls] == ["get_weather"]
    assert re.fullmatch("[A-Za-z0-9]{9}", choice.message.tool_calls[0].id)


def test_a_call_that_the_limit_cuts_off_ends_for_its_length() -> None:
    recorded = RECORDED["hermes, one call"]
    with client_of(chat_templates.HERMES, recorded.text) as client:
        full = client.chat.completions.create(**CHAT, tools=TOOLS).usage.completion_tokens
        [choice] = client.chat.completions.create(**CHAT, tools=TOOLS, max_tokens=full - 20).choices
    assert choice.finish_reason == "length"
    cut = choice.message.tool_calls[0].function.arguments
    assert cut
    assert recorded.calls[0][1].startswith(cut)


@pytest.mark.parametrize("n", [1, 3])
def test_every_choice_is_read_by_itself(n: int) -> None:
    with client_of(chat_templates.QWEN_2_5, tagged("now", '{"a": 1}')) as client:
        whole = client.chat.completions.create(**CHAT, tools=TOOLS, n=n)
        with client.chat.completions.create(**CHAT, tools=TOOLS, n=n, stream=True) as stream:
            chunks = list(stream)
    assert [choice.message.tool_calls[0].function.arguments for choice in whole.choices] == ['{"a": 1}'] * n
    arguments = [""] * n
    for chunk in chunks:
        for call in chunk.choices[0].delta.tool_calls or []:
            arguments[chunk.choices[0].index] += call.function.arguments
    assert arguments == ['{"a": 1}'] * n


def test_token_ids_and_logprobs_come_once_beside_calls() -> None:
    more = {"tools": TOOLS, "logprobs": True, "extra_body": {"return_token_ids": True}}
    with client_of(chat_templates.QWEN_2_5, tagged("now", '{"a": 1}')) as client:
        whole = client.chat.completions.create(**CHAT, **more).choices[0]
        with client.chat.completions.create(**CHAT, **more, stream=True) as stream:
            chunks = [chunk.choices[0] for chunk in stream]
    assert [i for chunk in chunks for i in getattr(chunk, "token_ids", None) or []] == whole.token_ids
    streamed = [entry for chunk in chunks if chunk.logprobs for entry in chunk.logprobs.content]
    assert streamed == whole.logprobs.content


@pytest.mark.parametrize(("template", "begin"), [("QWEN_3", "<think>\n"), ("ALWAYS_THINKS", "")])
def test_reasoning_is_apart_from_the_content(template: str, begin: str) -> None:
    text = begin + "Hm, 6 times 7.\n</think>\n\n42 </think>."
    with client_of(getattr(chat_templates, template), text) as client:
        message = client.chat.completions.create(**CHAT).choices[0].message
        with client.chat.completions.create(**CHAT, stream=True) as stream:
            deltas = [chunk.choices[0].delta for chunk in stream]
        raw = client.completions.create(model="tiny", prompt="x", temperature=0).choices[0].text
    assert (message.reasoning_content, message.content) == ("Hm, 6 times 7.", "42 </think>.")
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == message.reasoning_content
    assert "".join(delta.content or "" for delta in deltas) == message.content
    assert raw == text


def test_reasoning_stays_in_the_content_if_the_server_is_told_so() -> None:
    text = "<think>\nHm.\n</think>\n\nYes."
    with client_of(chat_templates.QWEN_3, text, reasoning_parser="none") as client:
        assert client.chat.completions.create(**CHAT).choices[0].message.content == text
    with client_of(chat_templates.QWEN_2_5, text) as client:
        assert client.chat.completions.create(**CHAT).choices[0].message.content == text
    with client_of(chat_templates.QWEN_2_5, text, reasoning_parser="think") as client:
        assert client.chat.completions.create(**CHAT).choices[0].message.content == "Yes."


def test_raw_chunks_are_as_openai_sends_them() -> None:
    app, backend = edge_of(chat_templates.QWEN_2_5)
    backend.answer = tagged("now", '{"a": 1}')
    with listening(app) as url:
        body = CHAT | {"tools": TOOLS, "stream": True}
        lines = httpx.post(url + "/v1/chat/completions", json=body).text.split("\n\n")
    chunks = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    deltas = [chunk["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    [begin] = [delta for delta in deltas if "id" in delta.get("tool_calls", [{}])[0]]
    assert begin["tool_calls"][0].keys() == {"index", "id", "type", "function"}
    assert deltas[-1] == {}
    assert chunks[-1]["finish_reason"] == "tool_calls"
    between = deltas[deltas.index(begin) + 1 : -1]
    assert all(delta["tool_calls"][0].keys() == {"index", "function"} for delta in between)
    assert "".join(delta["tool_calls"][0]["function"]["arguments"] for delta in between) == '{"a": 1}'
