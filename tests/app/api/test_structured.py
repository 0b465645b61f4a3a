"""A requested form reaches the backend as a grammar; a form that no text can have is refused with the reason."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from httpx import AsyncClient

from engine.grammar.work_limits import UNFORCED
from tests.app.conftest import MODEL, ScriptedBackend, error_of

CHAT_PATH = "/v1/chat/completions"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}
TEXT = {"model": MODEL, "prompt": "hi", "max_tokens": 50}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(("path", "body"), [(CHAT_PATH, CHAT), ("/v1/completions", TEXT)])
async def test_all_spellings_of_a_form_are_one_grammar(
    client: AsyncClient, backend: ScriptedBackend, path: str, body: dict[str, Any]
) -> None:
    spellings = [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
        {"structured_outputs": {"json": SCHEMA}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
    ]
    for fields in spellings:
        answer = await client.post(path, json=body | fields)
        assert answer.status_code == 200, answer.text
    [grammar] = {request.params.grammar for request in backend.seen}
    assert grammar is not None
    assert '"required":["a"]' in grammar.source


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"response_format": {"type": "json_object"}}, '"type":"object"'),
        ({"structured_outputs": {"json": True, "whitespace_pattern": "[ ]?"}}, '"whitespace_pattern":"[ ]?"'),
        ({"structured_outputs": {"json": True, "whitespace": "any"}}, '"whitespace_flexible":true'),
        ({"structured_outputs": {"json": True, "disable_any_whitespace": True}}, '"whitespace_flexible":false'),
        ({"guided_regex": "[0-9]+"}, "[0-9]+"),
        ({"guided_choice": ["yes", 'n"o', "yes"]}, 'start: "yes" | "n\\"o"'),
        ({"guided_grammar": 'start: "a" | "b"'}, 'start: "a" | "b"'),
        ({"guided_grammar": 'root ::= "a" | "b"'}, "start:"),
        ({"guided_grammar": 'start: A ~ 2 ("&" | /[&~]/) // & ~\nA: "~"'}, "A ~ 2"),
        ({"structured_outputs": {"choice": ["a"], "json": None, "regex": None, "grammar": None}}, 'start: "a"'),
        # A null is an absent field.
        ({"structured_outputs": {"regex": "a", "json_object": None, "disable_any_whitespace": None}}, "a"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strict": None}}}, ""),
        ({"response_format": {"type": "text", "json_schema": None}}, None),
        ({"stream": True, "stream_options": {"include_usage": None}}, None),
        ({"speculative": {"method": None, "max_nodes": None}}, None),
        ({}, None),
    ],
)
async def test_every_form_reaches_the_backend(
    client: AsyncClient, backend: ScriptedBackend, fields: dict[str, Any], part: str | None
) -> None:
    answer = await client.post(CHAT_PATH, json=CHAT | fields)
    assert answer.status_code == 200, answer.text
    grammar = backend.seen[-1].params.grammar
    if part is None:
        assert grammar is None
    else:
        assert part in grammar.source
        assert grammar.source.startswith(UNFORCED) or "guided_grammar" not in fields


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


LARGE = {"type": "integer", "multipleOf": 30_000_001}
RULES = "root ::= r0\n" + "\r".join(f'r{i} ::= "b" r{i + 1}' for i in range(64)) + '\rr64 ::= "a"'
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "json_schema"}}, "response_format", "must have json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "", "schema is missing"),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one of"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "exactly one of"),
    (
        {"structured_outputs": {"json": {}, "whitespace": "any", "disable_any_whitespace": True}},
        "structured_outputs",
        "at most one of disable_any_whitespace, whitespace_pattern and whitespace 'any'",
    ),
    ({"guided_json": nested(40)}, "guided_json", "more than 32 deep"),
    ({"guided_json": {"enum": ["x" * 70_000]}}, "guided_json", "at most 65536"),
    ({"guided_json": {"type": "integer", "minimum": 3, "maximum": 1}}, "guided_json", "Unsatisfiable"),
    ({"guided_json": {"$ref": "https://example.com/schema"}}, "guided_json", "example.com"),
    ({"guided_regex": "(a"}, "guided_regex", "unclosed"),
    ({"guided_regex": "a" * 5000}, "guided_regex", "at most 4096"),
    ({"guided_choice": ["a"] * 600}, "guided_choice", "at most 512"),
    ({"guided_grammar": "root ::= ("}, "guided_grammar", "grammar that cannot be read"),
    ({"guided_grammar": '{"grammars": []}'}, "guided_grammar", "is JSON"),
    ({"guided_grammar": "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(4000))}, "guided_grammar", "lines"),
    ({"guided_grammar": "start: A\nA: /a+/ & /b+/"}, "guided_grammar", "without '&' and '~'"),
    ({"guided_grammar": RULES}, "guided_grammar", "66 rules; in llama.cpp's form it must have at most 4096 and 64"),
    ({"guided_grammar": 'root ::= "a"' + " " * 4096}, "guided_grammar", "4108 characters"),
    ({"guided_grammar": "start: A # " + ")" * 40 + "\nA: " + "(" * 40}, "guided_grammar", "nested"),
    ({"guided_json": LARGE}, "guided_json", "multipleOf is 30000001"),
    ({"guided_grammar": f"start: %json {json.dumps(LARGE)}"}, "guided_grammar", "multipleOf is 30000001"),
    ({"guided_regex": "(a{1000}){1000}"}, "guided_regex", "no text can begin"),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "its text must end"),
    ({"guided_regex": "a", "bad_words": ["a"]}, "guided_regex", "leave no token"),
]


@pytest.mark.parametrize(("fields", "param", "reason"), REFUSED)
async def test_an_impossible_form_is_refused_with_the_reason_and_does_no_harm(
    client: AsyncClient, backend: ScriptedBackend, fields: dict[str, Any], param: str, reason: str
) -> None:
    error = error_of(await client.post(CHAT_PATH, json=CHAT | fields), 400)
    assert reason in error["message"]
    assert len(error["message"]) <= 1000
    assert not param or error["param"] == param
    assert not backend.seen
    assert (await client.post(CHAT_PATH, json=CHAT | {"guided_regex": "(a)"})).status_code == 200


SHORT: list[tuple[str, dict[str, Any], str]] = [
    (CHAT_PATH, CHAT | {"guided_json": {"type": "string", "minLength": 3}}, "max_tokens"),
    ("/v1/completions", TEXT | {"structured_outputs": {"json": SCHEMA}}, "max_tokens"),
    (
        CHAT_PATH,
        CHAT | {"max_tokens": None, "max_completion_tokens": 5, "guided_json": SCHEMA},
        "max_completion_tokens",
    ),
    (
        "/v1/responses",
        {
            "model": MODEL,
            "input": "hi",
            "max_output_tokens": 5,
            "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        },
        "max_output_tokens",
    ),
]


@pytest.mark.parametrize(("path", "body", "name"), SHORT)
async def test_a_budget_below_the_shortest_answer_is_refused_with_that_number(
    client: AsyncClient, backend: ScriptedBackend, path: str, body: dict[str, Any], name: str
) -> None:
    error = error_of(await client.post(path, json=body | {name: 1}), 400)
    assert error["param"] == name
    found = re.fullmatch(rf"{name} is 1; the shortest answer that fits [a-z_.]+ has (\d+) tokens", error["message"])
    assert found is not None, error["message"]
    assert ("text.format" in error["message"]) == (path == "/v1/responses")
    least = int(found[1])
    assert error_of(await client.post(path, json=body | {name: least - 1}), 400)["message"].endswith(f"{least} tokens")
    assert not backend.seen
    assert (await client.post(path, json=body | {name: least})).status_code == 200
