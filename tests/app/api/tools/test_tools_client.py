"""Calls of tools and reasoning through the official client."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.app.api.tools.chat_templates import ALWAYS_THINKS, QWEN_2_5, QWEN_3
from tests.app.api.tools.conftest import answering, edge_of
from tests.app.conftest import chunks_of, client_of
from tests.support.recorded_calls import RECORDED, WHOLE_AND_STREAMED, RecordedOutput, tagged

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("get_weather", "search", "now")
]
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
CALL = tagged("now", '{"a": 1}')


@pytest.mark.parametrize("recorded", [RECORDED[name] for name in WHOLE_AND_STREAMED], ids=WHOLE_AND_STREAMED)
def test_calls_are_the_same_whole_and_streamed(recorded: RecordedOutput) -> None:
    with answering(recorded) as client:
        whole = client.chat.completions.create(**CHAT, tools=TOOLS)
        with client.chat.completions.create(**CHAT, tools=TOOLS, stream=True) as stream:
            chunks = list(stream)
    [choice] = whole.choices
    calls = choice.message.tool_calls or []
    assert tuple((call.function.name, call.function.arguments) for call in calls) == recorded.calls
    assert (choice.message.content or "") == recorded.content
    assert choice.finish_reason == ("tool_calls" if recorded.calls else "stop")
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == recorded.content
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


def test_the_clients_stream_helper_reads_calls_and_its_message_can_be_sent_back() -> None:
    recorded = RECORDED["qwen, text and two calls"]
    with answering(recorded) as client:
        with client.chat.completions.stream(**CHAT, tools=TOOLS) as stream:
            message: Any = stream.get_final_completion().choices[0].message
        results = [{"role": "tool", "tool_call_id": call.id, "content": "noon"} for call in message.tool_calls]
        messages = [*CHAT["messages"], message, *results]
        again = client.chat.completions.create(**CHAT | {"messages": messages}, tools=TOOLS)
        one = client.chat.completions.create(**CHAT, tools=TOOLS, parallel_tool_calls=False)
    assert message.content == recorded.content
    assert tuple((call.function.name, call.function.arguments) for call in message.tool_calls) == recorded.calls
    assert again.choices[0].finish_reason == "tool_calls"
    assert len(one.choices[0].message.tool_calls) == 1


def test_without_tools_or_with_choice_none_a_call_is_text() -> None:
    with answering(CALL, QWEN_2_5) as client:
        for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            [choice] = client.chat.completions.create(**CHAT, **more).choices
            assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (CALL, None, "stop")


def test_a_call_cut_by_the_limit_finishes_with_length() -> None:
    recorded = RECORDED["hermes, one call"]
    with answering(recorded) as client:
        full = client.chat.completions.create(**CHAT, tools=TOOLS).usage.completion_tokens
        [choice] = client.chat.completions.create(**CHAT, tools=TOOLS, max_tokens=full - 20).choices
    assert choice.finish_reason == "length"
    cut = choice.message.tool_calls[0].function.arguments
    assert cut
    assert recorded.calls[0][1].startswith(cut)


def test_every_choice_has_its_own_call_token_ids_and_logprobs() -> None:
    more: Any = {"tools": TOOLS, "n": 3, "logprobs": True, "extra_body": {"return_token_ids": True}}
    with answering(CALL, QWEN_2_5) as client:
        whole = client.chat.completions.create(**CHAT, **more)
        with client.chat.completions.create(**CHAT, **more, stream=True) as stream:
            chunks = [chunk.choices[0] for chunk in stream]
    assert [choice.message.content for choice in whole.choices] == [None] * 3
    for choice in whole.choices:
        own = [chunk for chunk in chunks if chunk.index == choice.index]
        calls = [call for chunk in own for call in chunk.delta.tool_calls or []]
        assert "".join(call.function.arguments for call in calls) == '{"a": 1}'
        assert choice.message.tool_calls[0].function.arguments == '{"a": 1}'
        assert [i for chunk in own for i in getattr(chunk, "token_ids", None) or []] == choice.token_ids
        assert [entry for chunk in own if chunk.logprobs for entry in chunk.logprobs.content] == choice.logprobs.content


@pytest.mark.parametrize(("template", "begin"), [(QWEN_3, "<think>\n"), (ALWAYS_THINKS, "")], ids=["opens", "always"])
def test_reasoning_is_separate_from_the_content(template: str, begin: str) -> None:
    text = begin + "Hm, 6 times 7.\n</think>\n\n42 </think>."
    with answering(text, template) as client:
        message: Any = client.chat.completions.create(**CHAT).choices[0].message
        with client.chat.completions.create(**CHAT, stream=True) as stream:
            deltas = [chunk.choices[0].delta for chunk in stream]
        raw = client.completions.create(model="tiny", prompt="x", temperature=0).choices[0].text
    assert (message.reasoning_content, message.content) == ("Hm, 6 times 7.", "42 </think>.")
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == message.reasoning_content
    assert "".join(delta.content or "" for delta in deltas) == message.content
    assert raw == text


@pytest.mark.parametrize(
    ("template", "settings", "content"),
    [
        (QWEN_3, {"reasoning_parser": "none"}, "<think>\nHm.\n</think>\n\nYes."),
        (QWEN_2_5, {}, "<think>\nHm.\n</think>\n\nYes."),
        (QWEN_2_5, {"reasoning_parser": "think"}, "Yes."),
    ],
)
async def test_the_reasoning_parser_can_be_set(template: str, settings: dict[str, str], content: str) -> None:
    app, _ = edge_of(template, "<think>\nHm.\n</think>\n\nYes.", **settings)
    async with client_of(app) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)
    assert answer.json()["choices"][0]["message"]["content"] == content


@pytest.mark.parametrize("stream", [False, True])
async def test_usage_counts_tokens_to_the_end_of_the_reasoning(stream: bool) -> None:
    thought, answer = "<think>\nHm, 6 times 7.\n</think>", "\n\n42 </think>."
    app, backend = edge_of(QWEN_3)
    backend.tokenizer.add_tokens(["<think>", "</think>"])
    backend.model_card = msgspec.structs.replace(backend.model_card, vocab_size=len(backend.tokenizer))
    n_thought = len(backend.tokenizer.encode(thought, add_special_tokens=False))
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    async with client_of(app) as client:
        for text, more, expected in (
            (thought + answer, {"n": 2}, 2 * n_thought),
            (thought + answer, {"max_tokens": 5}, 5),
            ("<think></think>Yes.", {}, 2),
            ("Yes.", {}, 0),
        ):
            backend.answer = text
            response = await client.post("/v1/chat/completions", json=CHAT | options | more)
            usage = (chunks_of(response)[-1] if stream else response.json())["usage"]
            assert usage["completion_tokens_details"] == {"reasoning_tokens": expected}
            assert usage["completion_tokens"] >= expected
