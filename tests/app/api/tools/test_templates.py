"""The model's template gets tools, calls, results and variables; a field that it would ignore is refused."""

from __future__ import annotations

from typing import Any

import pytest

from app.api.tools.families import FAMILIES, family_of
from tests.app.api.tools.chat_templates import MISTRAL, OF_FAMILY, QWEN_3, WITH_EFFORT
from tests.app.api.tools.conftest import edge_of
from tests.app.conftest import client_of, error_of

PATH = "/v1/chat/completions"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Weather of a city", "parameters": PARAMETERS}
WEATHER = {"type": "function", "function": FUNCTION}
STRICT = {"type": "function", "function": FUNCTION | {"strict": True}}
OTHER_TOOL = {"type": "function", "function": {"name": "get"}}
USER = {"role": "user", "content": "Is it cold?"}
CALL = {"id": "a1B2c3D4e", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Zug"}'}}
CONVERSATION = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a1B2c3D4e", "content": '{"degrees": -3}'},
]
BODY = {"model": "tiny", "messages": [USER]}
NO_OBJECTS = ("{", "[1]", '"x"', "NaN", "[" * 100_000)


def with_arguments(text: str) -> dict[str, Any]:
    wrong = CALL | {"function": {"name": "get_weather", "arguments": text}}
    return {"messages": [USER, {"role": "assistant", "tool_calls": [wrong]}]}


async def prompt_of(template: Any, *, tool_parser: str | None = None, **fields: Any) -> str:
    app, backend = edge_of(template, **({} if tool_parser is None else {"tool_parser": tool_parser}))
    async with client_of(app) as client:
        response = await client.post(PATH, json=BODY | fields)
    assert response.status_code == 200, response.text
    return str(backend.tokenizer.decode(backend.seen[-1].prompt))


async def refusal_of(template: Any, *, path: str = PATH, tool_parser: str | None = None, **fields: Any) -> Any:
    app, _ = edge_of(template, **({} if tool_parser is None else {"tool_parser": tool_parser}))
    async with client_of(app) as client:
        return error_of(await client.post(path, json=(BODY if path == PATH else {"prompt": "a"}) | fields), 400)


@pytest.mark.parametrize(("family", "template"), OF_FAMILY.items())
async def test_every_familys_template_writes_tools_calls_and_results(family: str, template: str) -> None:
    assert family_of(template) is FAMILIES[family]
    prompt = await prompt_of(template, tools=[WEATHER], messages=CONVERSATION)
    for words in ("get_weather", "Weather of a city", '"required"', "Is it cold?", '{"city": "Zug"}', "-3"):
        assert words in prompt, words
    without = await prompt_of(template)
    assert "get_weather" not in without
    assert await prompt_of(template, tools=[WEATHER], tool_choice="none") == without


async def test_tokenize_renders_what_a_chat_renders() -> None:
    app, backend = edge_of(QWEN_3)
    fields = {"tools": [WEATHER], "chat_template_kwargs": {"enable_thinking": False}}
    async with client_of(app) as client:
        await client.post(PATH, json=BODY | fields)
        tokens = (await client.post("/tokenize", json={"messages": [USER]} | fields)).json()["tokens"]
        plain = (await client.post("/tokenize", json={"messages": [USER]})).json()["tokens"]
    assert tokens == backend.seen[-1].prompt
    assert len(plain) < len(tokens)
    for more in ({"tools": [WEATHER]}, {"reasoning_effort": "low"}):
        error = await refusal_of(QWEN_3, path="/tokenize", **more)
        assert "go with messages" in error["message"]


async def test_developer_messages_are_system_messages_unless_the_template_knows_them() -> None:
    messages = [{"role": "developer", "content": "Be brief.", "name": "ops"}, USER]
    assert "<|im_start|>system\nBe brief." in await prompt_of(QWEN_3, messages=messages)
    knows = "{% for m in messages %}{% if m.role == 'developer' %}D{{ m.name }}{% endif %}{{ m.content }}{% endfor %}"
    assert await prompt_of(knows, messages=messages) == "DopsBe brief.Is it cold?"


async def test_variables_reach_the_template() -> None:
    without_thinking = await prompt_of(QWEN_3, chat_template_kwargs={"enable_thinking": False})
    assert without_thinking.endswith("<think>\n\n</think>\n\n")
    assert not (await prompt_of(QWEN_3)).endswith("</think>\n\n")
    assert "Reasoning: high" in await prompt_of(WITH_EFFORT, reasoning_effort="high")


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    (QWEN_3, {"tool_choice": "required"}, "tool_choice", "'required'"),
    (QWEN_3, {"tools": [WEATHER], "tool_choice": OTHER_TOOL}, "tool_choice", "not among tools"),
    (QWEN_3, {"tools": [STRICT], "bad_words": ["a"]}, "tools", "bad_words"),
    (QWEN_3, {"tools": [WEATHER], "tool_choice": "required", "ignore_eos": True}, "tool_choice", "ignore_eos"),
    (QWEN_3, {"tools": [WEATHER, WEATHER]}, "tools", "get_weather"),
    (QWEN_3, {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "'a b'"),
    (QWEN_3, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0]", "tool_call_id"),
    (QWEN_3, {"messages": [USER | {"tool_calls": [CALL]}]}, "messages[0]", "assistant"),
    (WITH_EFFORT, {"reasoning_effort": "all"}, "reasoning_effort", "'minimal'"),
    (
        QWEN_3,
        {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
        "reasoning_effort",
        "enable_thinking is not false",
    ),
    (QWEN_3, {"chat_template_kwargs": {"verbose": 1}}, "chat_template_kwargs", "takes no verbose"),
    (QWEN_3, {"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs", "chat_template"),
    (MISTRAL, {"chat_template_kwargs": {"raise_exception": "x"}}, "chat_template_kwargs", "raise_exception"),
    (QWEN_3, {"chat_template_kwargs": {"enable_thinking": {"a": 1}}}, "chat_template_kwargs", "lists"),
    (MISTRAL, {"messages": [USER, CONVERSATION[1] | {"tool_calls": [CALL | {"id": "x"}]}]}, "messages", "length 9"),
    (WITH_EFFORT, {"tools": [WEATHER]}, "tools", "takes none"),
    (WITH_EFFORT, {"messages": CONVERSATION}, "messages[1]", "takes no tools"),
    *((QWEN_3, with_arguments(text), "messages[1].tool_calls[0].function.arguments", "") for text in NO_OBJECTS),
]


@pytest.mark.parametrize(("template", "fields", "param", "words"), REFUSED, ids=lambda value: str(value)[:40])
async def test_an_unsupported_field_is_refused(template: str, fields: dict[str, Any], param: str, words: str) -> None:
    error = await refusal_of(template, **fields)
    assert error["param"] == param
    assert words in error["message"]


async def test_a_template_of_an_unknown_family_needs_the_flag() -> None:
    unknown = "{% for t in tools %}{{ t | tojson }}{% endfor %}{{ messages[0].content }}"
    error = await refusal_of(unknown, tools=[WEATHER])
    assert error["param"] == "tools"
    assert "--tool-parser hermes, llama3, mistral" in error["message"]
    assert "Weather" in await prompt_of(unknown, tool_parser="hermes", tools=[WEATHER])
    assert "tools" in (await refusal_of(QWEN_3, tool_parser="none", tools=[WEATHER]))["message"]


async def test_a_schema_of_any_depth_gets_an_answer() -> None:
    deep: dict[str, Any] = {}
    for _ in range(600):
        deep = {"a": deep}
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    async with client_of(edge_of(QWEN_3)[0]) as client:
        response = await client.post(PATH, json=BODY | {"tools": [tool]})
    assert response.status_code in (200, 400), response.text[:200]
