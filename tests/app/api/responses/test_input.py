"""The items of a Responses request become a chat; an unsupported field is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from httpx import AsyncClient

from app.api.requests.parsing import validated
from app.api.requests.responses import ResponsesRequest
from tests.app.conftest import error_of

CALL = {"type": "function_call", "call_id": "a", "name": "now", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "noon"}]}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes.", "annotations": []}]}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
BAD_PATTERN = {"type": "json_schema", "name": "a", "schema": {"type": "string", "pattern": "("}}
USER = {"role": "user", "content": "hi"}


def chat_of(**fields: Any) -> dict[str, Any]:
    body = validated(ResponsesRequest, {"model": "tiny", "input": "hi"} | fields)
    return body.chat.model_dump(exclude_defaults=True)


def turn(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content} | more


def called(*ids: str) -> dict[str, Any]:
    return {"tool_calls": [{"id": i, "function": {"name": "now", "arguments": "{}"}} for i in ids]}


@pytest.mark.parametrize(
    ("instructions", "items", "messages"),
    [
        (None, "hi", [turn("user", "hi")]),
        ("Be brief.", [USER], [turn("system", "Be brief."), turn("user", "hi")]),
        ("A.", [{"role": "developer", "content": "B."}, USER], [turn("system", "A.\n\nB."), turn("user", "hi")]),
        (None, [USER, THOUGHT, SAID], [turn("user", "hi"), turn("assistant", "Yes.", reasoning_content="Hm.")]),
        (None, [USER, SAID, SAID], [turn("user", "hi"), turn("assistant", "Yes."), turn("assistant", "Yes.")]),
        (
            None,
            [USER, SAID, CALL, CALL | {"call_id": "b"}, RESULT, SAID],
            [
                turn("user", "hi"),
                turn("assistant", "Yes.", **called("a", "b")),
                turn("tool", "noon", tool_call_id="a"),
                turn("assistant", "Yes."),
            ],
        ),
        (None, [USER, {"type": "reasoning", "summary": []}], [turn("user", "hi")]),
    ],
)
def test_items_become_turns_of_a_chat(instructions: str | None, items: Any, messages: list[dict[str, Any]]) -> None:
    found = chat_of(input=items, instructions=instructions)["messages"]
    for message in found:
        for call in message.get("tool_calls", ()):
            call.pop("type", None)
    assert found == messages


def test_options_mean_the_same_as_in_a_chat() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tool = {"type": "function", "name": "now", "parameters": schema, "strict": True}
    chat = chat_of(tools=[tool], tool_choice={"type": "function", "name": "now"}, max_output_tokens=7, seed=1)
    assert chat["tools"][0]["function"] == {"name": "now", "parameters": schema, "strict": True}
    assert chat["tool_choice"]["function"] == {"name": "now"}
    assert (chat["max_completion_tokens"], chat["seed"]) == (7, 1)
    form = {"type": "json_schema", "name": "a", "schema": schema, "strict": True}
    chat = chat_of(text={"format": form}, reasoning={"effort": "low"}, include=["message.output_text.logprobs"])
    assert chat["response_format"]["json_schema"]["definition"] == schema
    assert (chat["reasoning_effort"], chat["logprobs"]) == ("low", True)
    assert chat_of(stream=True, stream_options={"include_obfuscation": None}) == chat_of(stream=True)


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "does not support"),
        ({"input": []}, "input", "at least 1 item"),
        ({"input": [{"role": "user"}]}, "input[0]", "has no content"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "must be"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "must be"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content", "reads text"),
        ({"input": [USER] * 3 + [CALL] * 129}, "input", "at most 128 items"),
        ({"input": [{"type": {}, "role": "user"}]}, "input[0].type", "must be"),
        ({"input": [{"role": "user", "content": [{"type": {}}]}]}, "input[0].content", "reads text"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "must be 'function'"),
        ({"top_logprobs": 2}, "top_logprobs", "in include"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "json_schema"),
        ({"text": {"format": BAD_PATTERN}}, "text.format", "cannot"),
        ({"max_output_tokens": 10**6}, "input", "model's maximum context length"),
    ],
)
async def test_an_unsupported_item_or_field_is_refused(
    client: AsyncClient, fields: dict[str, Any], param: str, said: str
) -> None:
    body = {"model": "tiny", "input": "hi"}
    error = error_of(await client.post("/v1/responses", json=body | fields), 400)
    assert error["param"] == param
    assert said in error["message"]
    assert (await client.post("/v1/responses", json=body)).status_code == 200
