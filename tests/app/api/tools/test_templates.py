"""The model's own template gets tools, calls, their results and variables; what it would pass over is refused."""

from __future__ import annotations

import json

import pytest

from app.api.tools.families import FAMILIES, family_of
from tests.support import chat_templates
from tests.support.chat_templates import OF_FAMILY

PATH = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
USER = {"role": "user", "content": "Is it cold?"}
CALL = {"id": "a1B2c3D4e", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Zug"}'}}
CONVERSATION = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a1B2c3D4e", "content": '{"degrees": -3}'},
]
BODY = {"model": "tiny", "messages": [USER]}


async def prompt_of(client, backend, **fields) -> str:
    async with client:
        response = await client.post(PATH, json=BODY | fields)
    assert response.status_code == 200, response.text
    return backend.tokenizer.decode(backend.seen[-1].prompt)


async def error_of(client, **fields) -> dict:
    async with client:
        response = await client.post(PATH, json=BODY | fields)
    assert response.status_code == 400, response.text
    return response.json()["error"]


@pytest.mark.parametrize(("family", "template"), OF_FAMILY.values(), ids=OF_FAMILY)
async def test_every_familys_template_writes_tools_calls_and_results(serving, family, template) -> None:
    assert family_of(template) is FAMILIES[family]
    prompt = await prompt_of(*serving(template), tools=[WEATHER], messages=CONVERSATION)
    for words in ("get_weather", "Weather of a city", '"required"', "Is it cold?", '{"city": "Zug"}', "-3"):
        assert words in prompt, words
    plain = await prompt_of(*serving(template))
    assert "get_weather" not in plain


async def test_the_demo_models_template_is_written_to_the_letter(serving) -> None:
    prompt = await prompt_of(*serving(chat_templates.DEMO_WORLD), tools=[WEATHER], messages=CONVERSATION)
    assert prompt == (
        f"<|bos|><|system|>Tools:\n{json.dumps(WEATHER['function'])}<|end|><|user|>Is it cold?<|end|><|assistant|>"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zug"}}\n</tool_call><|end|>'
        '<|user|><tool_response>\n{"degrees": -3}\n</tool_response><|end|><|assistant|>'
    )


async def test_tokenize_writes_what_a_chat_writes(serving) -> None:
    client, backend = serving(chat_templates.QWEN_3)
    told = {"tools": [WEATHER], "chat_template_kwargs": {"enable_thinking": False}}
    async with client:
        await client.post(PATH, json=BODY | told)
        tokens = (await client.post("/tokenize", json={"messages": [USER]} | told)).json()["tokens"]
        plain = (await client.post("/tokenize", json={"messages": [USER]})).json()["tokens"]
    assert tokens == backend.seen[-1].prompt
    assert len(plain) < len(tokens)


@pytest.mark.parametrize("told", [{"tools": [WEATHER]}, {"reasoning_effort": "low"}])
async def test_tokenize_takes_tools_and_variables_with_messages_alone(serving, told: dict[str, object]) -> None:
    client, _ = serving(chat_templates.QWEN_3)
    async with client:
        response = await client.post("/tokenize", json={"prompt": "a"} | told)
    assert (response.status_code, "go with messages" in response.json()["error"]["message"]) == (400, True)


async def test_with_tool_choice_none_the_model_is_told_of_no_tools(serving) -> None:
    without = await prompt_of(*serving(chat_templates.QWEN_3))
    assert await prompt_of(*serving(chat_templates.QWEN_3), tools=[WEATHER], tool_choice="none") == without
    assert await prompt_of(*serving(chat_templates.QWEN_3), tools=[WEATHER], tool_choice="auto") != without


async def test_a_template_of_several_has_one_for_tools(serving) -> None:
    several = {"default": "{{ messages[0].content }}", "tool_use": chat_templates.HERMES}
    assert await prompt_of(*serving(several)) == "Is it cold?"
    assert "Weather of a city" in await prompt_of(*serving(several), tools=[WEATHER])


async def test_developers_are_the_system_unless_the_template_knows_them(serving) -> None:
    messages = [{"role": "developer", "content": "Be brief.", "name": "ops"}, USER]
    assert "<|im_start|>system\nBe brief." in await prompt_of(*serving(chat_templates.QWEN_3), messages=messages)
    knows = "{% for m in messages %}{% if m.role == 'developer' %}D{{ m.name }}{% endif %}{{ m.content }}{% endfor %}"
    assert await prompt_of(*serving(knows), messages=messages) == "DopsBe brief.Is it cold?"


async def test_variables_reach_the_template(serving) -> None:
    told = {"chat_template_kwargs": {"enable_thinking": False}}
    assert (await prompt_of(*serving(chat_templates.QWEN_3), **told)).endswith("<think>\n\n</think>\n\n")
    assert not (await prompt_of(*serving(chat_templates.QWEN_3))).endswith("</think>\n\n")
    assert "Reasoning: high" in await prompt_of(*serving(chat_templates.WITH_EFFORT), reasoning_effort="high")


REFUSED = [
    ("QWEN_3", {"tool_choice": "required"}, "tool_choice", ["'required'", "no tools"]),
    (
        "QWEN_3",
        {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "get"}}},
        "tool_choice",
        ["'get'", "not among tools"],
    ),
    (
        "QWEN_3",
        {"tools": [{"type": "function", "function": WEATHER["function"] | {"strict": True}}], "bad_words": ["a"]},
        "tools",
        ["strict", "bad_words"],
    ),
    ("QWEN_3", {"tools": [WEATHER], "tool_choice": "required", "ignore_eos": True}, "tool_choice", ["ignore_eos"]),
    ("QWEN_3", {"tool_choice": "perhaps"}, "tool_choice", ["'perhaps'", "'auto'"]),
    ("QWEN_3", {"tools": [WEATHER, WEATHER]}, "tools", ["get_weather", "twice"]),
    ("QWEN_3", {"tools": [WEATHER] * 129}, "tools", ["128"]),
    ("QWEN_3", {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", ["'a b'"]),
    ("QWEN_3", {"tools": [{"type": "custom"}]}, "tools[0].type", ["'custom'", "'function'"]),
    ("QWEN_3", {"functions": [{"name": "f"}]}, "functions", ["does not support"]),
    ("QWEN_3", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0]", ["tool_call_id"]),
    ("QWEN_3", {"messages": [USER | {"tool_call_id": "x"}]}, "messages[0]", ["only then"]),
    ("QWEN_3", {"messages": [USER | {"tool_calls": [CALL]}]}, "messages[0]", ["assistant"]),
    ("QWEN_3", {"messages": [{"role": "assistant", "content": None}]}, "messages[0].content", ["missing"]),
    ("QWEN_3", {"reasoning_effort": "high"}, "reasoning_effort", ["takes no reasoning_effort"]),
    ("WITH_EFFORT", {"reasoning_effort": "all"}, "reasoning_effort", ["'all'", "'minimal'"]),
    ("QWEN_3", {"chat_template_kwargs": {"verbose": 1}}, "chat_template_kwargs", ["takes no verbose"]),
    ("QWEN_3", {"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs", ["chat_template"]),
    ("QWEN_3", {"chat_template_kwargs": {"tools": ["x"]}}, "chat_template_kwargs", ["tools"]),
    ("LLAMA_3", {"chat_template_kwargs": {"raise_exception": "x"}}, "chat_template_kwargs", ["raise_exception"]),
    ("LLAMA_3", {"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs", ["bos_token"]),
    ("QWEN_3", {"chat_template_kwargs": {"enable_thinking": {"a": 1}}}, "chat_template_kwargs", ["lists"]),
    ("QWEN_3", {"chat_template_kwargs": {"enable_thinking": 2**40}}, "chat_template_kwargs", ["32-bit"]),
    ("QWEN_3", {"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs", ["'a b'"]),
    ("MISTRAL", {"messages": [USER, CONVERSATION[1] | {"tool_calls": [CALL | {"id": "x"}]}]}, "messages", ["length 9"]),
    ("WITH_EFFORT", {"tools": [WEATHER]}, "tools", ["takes none"]),
    ("WITH_EFFORT", {"messages": CONVERSATION}, "messages[1]", ["takes no tools"]),
]


@pytest.mark.parametrize(("template", "fields", "param", "words"), REFUSED, ids=lambda value: str(value)[:40])
async def test_what_cannot_be_honoured_is_named(serving, template, fields, param, words) -> None:
    error = await error_of(serving(getattr(chat_templates, template))[0], **fields)
    assert error["param"] == param, error
    for word in words:
        assert word in error["message"]


@pytest.mark.parametrize("arguments", ["{", "[1]", '"x"', "NaN", "[" * 100_000])
async def test_arguments_of_earlier_calls_are_json_objects(serving, arguments) -> None:
    wrong = CALL | {"function": {"name": "get_weather", "arguments": arguments}}
    messages = [USER, {"role": "assistant", "tool_calls": [wrong]}]
    error = await error_of(serving(chat_templates.QWEN_3)[0], messages=messages)
    assert error["param"] == "messages[1].tool_calls[0].function.arguments"


async def test_a_template_without_a_known_form_needs_the_flag(serving) -> None:
    unknown = "{% for t in tools %}{{ t | tojson }}{% endfor %}{{ messages[0].content }}"
    error = await error_of(serving(unknown)[0], tools=[WEATHER])
    assert error["param"] == "tools"
    assert "--tool-parser hermes, llama3, mistral" in error["message"]
    assert "Weather" in await prompt_of(*serving(unknown, tool_parser="hermes"), tools=[WEATHER])
    assert (
        "tools" in (await error_of(serving(chat_templates.QWEN_3, tool_parser="none")[0], tools=[WEATHER]))["message"]
    )


async def test_a_schema_of_any_depth_is_answered(serving) -> None:
    deep: dict = {}
    for _ in range(600):
        deep = {"a": deep}
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    client, _ = serving(chat_templates.QWEN_3)
    async with client:
        response = await client.post(PATH, json=BODY | {"tools": [tool]})
    assert response.status_code in (200, 400), response.text[:200]
