"""A model thinks freely before an answer in a form; tools and a form together give calls or that form."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from httpx import AsyncClient
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.app.api.engine_backend import over_engine
from tests.app.api.tools.chat_templates import ALWAYS_THINKS, OF_FAMILY, QWEN_2_5, QWEN_3
from tests.app.api.tools.conftest import edge_of
from tests.app.conftest import client_of, error_of

SCHEMA = {
    "type": "object",
    "properties": {"unit": {"enum": ["C", "F"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["unit", "days"],
    "additionalProperties": False,
}
FORM = {"response_format": {"type": "json_schema", "json_schema": {"name": "rain", "schema": SCHEMA}}}
TOOLS = {"tools": [{"type": "function", "function": {"name": "forecast", "parameters": SCHEMA}}]}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Rain?"}], "seed": 5, "max_tokens": 120}
PATH = "/v1/chat/completions"
NO_THOUGHT = {"chat_template_kwargs": {"enable_thinking": False}}
WORDS = ("x", "y", "z")
METHODS = {0.0: ("always-wrong", "pld"), 0.9: ("suffix+token-recycling", "auto")}  # by temperature
MARKS = {"<|system|>": "<think>", "<|user|>": "</think>", "<|assistant|>": "<tool_call>", "<|pad|>": "</tool_call>"}


@asynccontextmanager
async def serving(checkpoint: Path, template: str, folder: Path) -> AsyncIterator[tuple[AsyncClient, dict[str, int]]]:
    """A client of a random model whose marks are single tokens, and the ids of its words and marks."""
    shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
    path = folder / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    for name, mark in MARKS.items():
        text = text.replace(name, mark)
    path.write_text(text, encoding="utf-8")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(text), eos_token="<|end|>")
    tokenizer.chat_template = template
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in MARKS.values()}
    ids |= {word: tokenizer.encode(word, add_special_tokens=False)[0] for word in WORDS}
    async with over_engine(folder, tokenizer, 1000) as client:
        yield client, ids


def thinking_briefly(ids: dict[str, int]) -> dict[str, Any]:
    """Sampling fields with which a random model opens a thought, uses a few words and closes it.

    Each use of a word makes it less likely, until the closing mark is the likeliest token.
    """
    bias = {ids["<think>"]: 100, ids["</think>"]: 96} | {ids[word]: 98 for word in WORDS}
    return {"logit_bias": {str(token): value for token, value in bias.items()}, "frequency_penalty": 2.0}


async def chat(client: AsyncClient, **fields: Any) -> dict[str, Any]:
    """The only choice of a chat, after a check that a stream has the same."""
    answer = await client.post(PATH, json=CHAT | fields)
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    streamed = await client.post(PATH, json=CHAT | fields | {"stream": True})
    chunks = [json.loads(line[6:]) for line in streamed.text.split("\n\n") if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    kinds = [key for delta in deltas for key in ("reasoning_content", "content") if delta.get(key)]
    assert kinds == sorted(kinds, reverse=True)  # reasoning first
    for key in ("reasoning_content", "content"):
        assert "".join(delta.get(key) or "" for delta in deltas) == (choice["message"].get(key) or "")
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    return dict(choice)


@pytest.mark.parametrize(("template", "opens"), [(ALWAYS_THINKS, False), (QWEN_3, True)], ids=["template", "model"])
async def test_a_form_holds_after_the_thought_with_any_drafts(
    template: str, opens: bool, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    async with serving(tiny_checkpoint, template, tmp_path) as (client, ids):
        for temperature, methods in METHODS.items():
            fields = FORM | thinking_briefly(ids) | {"return_token_ids": True, "temperature": temperature}
            plain = await chat(client, **fields, speculative={"enabled": False})
            for method in methods:
                drafted = await client.post(PATH, json=CHAT | fields | {"speculative": {"method": method}})
                assert drafted.json()["choices"] == [plain]
            assert plain["finish_reason"] == "stop"
            jsonschema.validate(json.loads(plain["message"]["content"]), SCHEMA)
            assert set(plain["message"]["reasoning_content"]) & {*WORDS}
            assert not opens or plain["token_ids"][0] == ids["<think>"]


async def test_a_response_has_its_reasoning_before_a_text_in_the_form(tiny_checkpoint: Path, tmp_path: Path) -> None:
    asked = {"model": "tiny", "input": "Rain?", "max_output_tokens": 60, "temperature": 0}
    asked |= {"text": {"format": {"type": "json_schema", "name": "rain", "schema": SCHEMA}}}
    async with serving(tiny_checkpoint, ALWAYS_THINKS, tmp_path) as (client, _):
        cut = (await client.post("/v1/responses", json=asked)).json()
        answered = (await client.post("/v1/responses", json=asked | NO_THOUGHT)).json()
    assert (cut["status"], [item["type"] for item in cut["output"]]) == ("incomplete", ["reasoning"])
    assert (answered["status"], [item["type"] for item in answered["output"]]) == ("completed", ["message"])
    jsonschema.validate(json.loads(answered["output"][0]["content"][0]["text"]), SCHEMA)


@pytest.mark.parametrize(
    ("template", "no_thought"),
    [
        (ALWAYS_THINKS, NO_THOUGHT),
        (QWEN_3, NO_THOUGHT),
        (QWEN_3.replace("enable_thinking", "unknown"), NO_THOUGHT),
        (QWEN_3, {"reasoning_effort": "none"}),
    ],
)
async def test_a_model_that_must_not_think_answers_at_once(
    template: str, no_thought: dict[str, Any], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    async with serving(tiny_checkpoint, template, tmp_path) as (client, ids):
        fields = FORM | no_thought | thinking_briefly(ids) | {"temperature": 0, "return_token_ids": True}
        whole = (await client.post(PATH, json=CHAT | fields)).json()
        choice = await chat(client, **fields)
    written = [ids.get(part, None) for part in ("<think>", "</think>")]
    assert [token for token in whole["prompt_token_ids"] if token in written] == written
    assert "reasoning_content" not in choice["message"]
    jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)


async def test_a_thought_that_uses_up_the_limit_gives_an_empty_content_that_can_be_sent_back(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    async with serving(tiny_checkpoint, ALWAYS_THINKS, tmp_path) as (client, _):
        cut = await chat(client, **FORM, temperature=0, max_tokens=20)
        assert (cut["message"]["content"], cut["finish_reason"]) == ("", "length")
        assert cut["message"]["reasoning_content"]
        for message in (cut["message"], {"role": "assistant", "content": None}, {"role": "assistant"}):
            messages = [*CHAT["messages"], message, *CHAT["messages"]]
            answer = await client.post(PATH, json=CHAT | {"messages": messages})
            assert answer.status_code == 200, answer.text
        nothing = await client.post(PATH, json=CHAT | {"messages": [{"role": "user", "content": None}]})
        assert error_of(nothing, 400)["param"].startswith("messages[0]")


NAMED = {"type": "function", "function": {"name": "forecast"}}


CHOICES = [(None, 100, True), (None, -100, False), ("required", -100, True), (NAMED, -100, True), ("none", 0, False)]


@pytest.mark.parametrize("template", [QWEN_2_5, ALWAYS_THINKS], ids=["answers", "thinks"])
async def test_tools_with_a_form_give_calls_or_a_text_in_the_form(
    template: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    async with serving(tiny_checkpoint, template, tmp_path) as (client, ids):
        for choice, bias, calls in CHOICES:
            fields = FORM | TOOLS | thinking_briefly(ids) | {"temperature": 0.9}
            fields["logit_bias"][str(ids["<tool_call>"])] = bias
            made = await chat(client, **fields, tool_choice=choice)
            message = made["message"]
            assert made["finish_reason"] == ("tool_calls" if calls else "stop")
            assert ("reasoning_content" in message) is (template == ALWAYS_THINKS)
            called = [call["function"]["arguments"] for call in message.get("tool_calls", [])]
            assert bool(called) is calls
            for text in called or [message["content"]]:
                jsonschema.validate(json.loads(text), SCHEMA)


async def test_a_text_in_a_form_keeps_its_own_spaces_after_a_thought() -> None:
    fields = {"structured_outputs": {"regex": "\\s+yes"}}
    for form, content in ((fields, "\t yes"), ({}, "yes")):
        app, _ = edge_of(ALWAYS_THINKS, "Hm.</think>\n\n\t yes")
        async with client_of(app) as client:
            answer = await client.post(PATH, json=CHAT | form | {"temperature": 0})
        message = answer.json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("Hm.", content)


@pytest.mark.parametrize("template", OF_FAMILY.values(), ids=OF_FAMILY)
async def test_a_text_in_a_form_is_no_call_in_any_family(template: str) -> None:
    for text in ('{"unit": "C", "days": 3}', '{"name": "Anna", "parameters": {}}', '"<tool_call>"'):
        app, _ = edge_of(template, text)
        async with client_of(app) as client:
            made = await chat(client, **TOOLS, structured_outputs={"json": {}}, temperature=0)
        assert (made["message"]["content"], made["message"].get("tool_calls")) == (text, None)


async def test_a_variable_that_turns_thinking_off_is_known_to_every_model() -> None:
    for template, variable, status in (
        (QWEN_2_5, False, 200),
        (QWEN_2_5, True, 400),
        (ALWAYS_THINKS, True, 200),
        (ALWAYS_THINKS, "no", 400),
    ):
        async with client_of(edge_of(template)[0]) as client:
            body = CHAT | {"chat_template_kwargs": {"enable_thinking": variable}}
            assert (await client.post(PATH, json=body)).status_code == status


async def test_the_refusal_of_a_grammar_names_the_field_that_it_comes_from() -> None:
    broken = {"type": "function", "function": {"name": "f", "parameters": {"minProperties": "x"}}}
    wrong = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "x"}}}}
    cases = ((FORM | {"tools": [broken]}, "tools"), (wrong | TOOLS, "response_format"))
    async with client_of(edge_of(QWEN_2_5)[0]) as client:
        for fields, param in cases:
            assert error_of(await client.post(PATH, json=CHAT | fields), 400)["param"] == param
