"""What an answer has to be arrives as a grammar; what no text can keep to is refused with the reason."""

from __future__ import annotations

import json

import pytest

from app.api.requests.structured import WHITESPACE
from engine.grammar.forcing import UNFORCED
from tests.app.conftest import MODEL

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
TEXT = {"model": MODEL, "prompt": "hi", "max_tokens": 5}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
async def test_every_spelling_of_one_form_is_one_grammar(client, backend, path: str, body: dict) -> None:
    spellings = [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
        {"structured_outputs": {"json": SCHEMA}},
        {"guided_json": SCHEMA},
        {
            "guided_json": '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], '
            '"additionalProperties": false}'
        },
    ]
    for fields in spellings:
        answer = await client.post(path, json=body | fields)
        assert answer.status_code == 200, answer.text
    grammars = {request.params.grammar for request in backend.seen}
    assert len(grammars) == 1
    (grammar,) = grammars
    assert grammar is not None
    assert '"required":["a"]' in grammar.source


async def test_a_text_or_nothing_is_no_grammar(client, backend) -> None:
    for fields in ({}, {"response_format": {"type": "text"}}, {"response_format": None, "guided_json": None}):
        assert (await client.post("/v1/chat/completions", json=CHAT | fields)).status_code == 200
    assert [request.params.grammar for request in backend.seen] == [None] * 3


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"response_format": {"type": "json_object"}}, '"type":"object"'),
        ({"structured_outputs": {"json_object": True, "disable_any_whitespace": True}}, '"whitespace_flexible":false'),
        ({"structured_outputs": {"json": True, "whitespace_pattern": "[ ]?"}}, '"whitespace_pattern":"[ ]?"'),
        ({"guided_regex": "[0-9]+"}, "[0-9]+"),
        ({"guided_choice": ["yes", 'n"o', "yes"]}, 'start: "yes" | "n\\"o"'),
        ({"guided_grammar": 'start: "a" | "b"'}, 'start: "a" | "b"'),
        ({"guided_grammar": 'root ::= "a" | "b"'}, "start:"),
        ({"guided_grammar": 'start: A ~ 2 ("&" | /[&~]/) // & ~\nA: "~"'}, "A ~ 2"),
        (
            {"structured_outputs": {"choice": ["a"], "json": None, "regex": None, "grammar": None}},
            'start: "a"',
        ),
        ({"structured_outputs": {"regex": "a", "choice": None, "whitespace_pattern": None}}, "a"),
    ],
)
async def test_every_form_arrives(client, backend, fields: dict, part: str) -> None:
    answer = await client.post("/v1/chat/completions", json=CHAT | fields)
    assert answer.status_code == 200, answer.text
    assert part in backend.seen[-1].params.grammar.source


async def test_whitespace_has_a_limit_unless_told_otherwise(client, backend) -> None:
    await client.post("/v1/chat/completions", json=CHAT | {"guided_json": SCHEMA})
    assert WHITESPACE.replace("\\", "\\\\") in backend.seen[-1].params.grammar.source


def nested(depth: int) -> dict:
    schema: dict = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
LARGE = {"type": "integer", "multipleOf": 30_000_001}
STRICT = {"type": "json_schema", "json_schema": {"name": "x", "schema": LARGE}}
RULES = "root ::= r0\n" + "\r".join(f'r{i} ::= "b" r{i + 1}' for i in range(64)) + '\rr64 ::= "a"'
REFUSED = [
    ({"response_format": {"type": "json_schema"}}, "response_format", "must have json_schema"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "'json_object' or 'json_schema'"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "", "schema is missing"),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one of"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "exactly one of"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "unknown field"),
    ({"guided_json": 5}, "guided_json", "an object, or true or false"),
    ({"guided_json": "{"}, "guided_json", "not JSON"),
    ({"guided_json": nested(40)}, "guided_json", "more than 32 deep"),
    ({"guided_json": {"enum": ["x" * 70_000]}}, "guided_json", "at most 65536"),
    ({"guided_json": {"type": "integer", "minimum": 3, "maximum": 1}}, "guided_json", "Unsatisfiable"),
    ({"guided_json": {"allOf": [{"type": "string"}, {"type": "null"}]}}, "guided_json", "Unsatisfiable"),
    ({"guided_json": {"type": "object", "unheardOf": 1, "not": {}}}, "guided_json", "not"),
    ({"guided_json": False}, "guided_json", "Unsatisfiable"),
    ({"guided_json": {"$ref": "https://example.com/schema"}}, "guided_json", "example.com"),
    ({"guided_regex": "(a"}, "guided_regex", "unclosed"),
    ({"guided_regex": "(?=a)b"}, "guided_regex", "look-around"),
    ({"guided_regex": "(" * 40 + ")" * 40}, "guided_regex", "nested"),
    ({"guided_regex": "a" * 5000}, "guided_regex", "at most 4096"),
    ({"guided_choice": []}, "guided_choice", "at least 1"),
    ({"guided_choice": [""]}, "guided_choice[0]", "at least 1 character"),
    ({"guided_choice": ["a"] * 600}, "guided_choice", "at most 512"),
    ({"guided_grammar": "start: nothing"}, "guided_grammar", "unknown name"),
    ({"guided_grammar": "root ::= ("}, "guided_grammar", "no grammar that can be read"),
    ({"guided_grammar": '{"grammars": []}'}, "guided_grammar", "is JSON"),
    ({"guided_grammar": "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(4000))}, "guided_grammar", "lines"),
    ({"guided_grammar": "start: A\nA: /a+/ & /b+/"}, "guided_grammar", "without '&' and '~'"),
    ({"guided_grammar": "start: A\nA: /a+/ | ~/b+/"}, "guided_grammar", "without '&' and '~'"),
    ({"guided_grammar": 'start: A <"> & A <">\nA: "b"'}, "guided_grammar", "without '&' and '~'"),
    ({"guided_grammar": RULES}, "guided_grammar", "66 rules; in llama.cpp's form it must have at most 4096 and 64"),
    ({"guided_grammar": 'root ::= "a"' + " " * 4096}, "guided_grammar", "4108 characters"),
    ({"guided_grammar": "start: A # " + ")" * 40 + "\nA: " + "(" * 40}, "guided_grammar", "nested"),
    ({"guided_json": LARGE}, "guided_json", "multipleOf is 30000001"),
    ({"response_format": STRICT}, "response_format", "multipleOf is 30000001"),
    ({"guided_grammar": f"start: %json {json.dumps(LARGE)}"}, "guided_grammar", "multipleOf is 30000001"),
    ({"guided_regex": "(a{1000}){1000}"}, "guided_regex", "no text can begin"),
    ({"guided_regex": "a", "guided_json": {}}, "guided_json", "only one"),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "has an end"),
    ({"guided_regex": "a", "bad_words": ["a"]}, "guided_regex", "leave no token"),
    ({"guided_regex": "a", "allowed_token_ids": [5]}, "guided_regex", "leave no token"),
    ({"guided_regex": "a", "tools": [TOOL]}, "guided_regex", "calls none"),
]


NULLS = [
    {"response_format": {"type": "text", "json_schema": None}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strict": None}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "description": None}}},
    {"structured_outputs": {"regex": "a", "json_object": None, "disable_any_whitespace": None}},
    {"stream": True, "stream_options": {"include_usage": None}},
    {"speculative": {"method": None, "max_nodes": None}},
]


@pytest.mark.parametrize("fields", NULLS)
async def test_a_null_is_an_absent_field(client, fields: dict) -> None:
    answer = await client.post("/v1/chat/completions", json=CHAT | fields)
    assert answer.status_code == 200, answer.text


async def test_a_grammar_of_a_client_is_never_forced(client, backend) -> None:
    for grammar in ('start: "a"', 'root ::= "a"'):
        assert (await client.post("/v1/chat/completions", json=CHAT | {"guided_grammar": grammar})).status_code == 200
        assert backend.seen[-1].params.grammar.source.startswith(UNFORCED)


@pytest.mark.parametrize(("fields", "param", "reason"), REFUSED)
async def test_what_cannot_be_honoured_says_why(client, backend, fields: dict, param: str, reason: str) -> None:
    answer = await client.post("/v1/chat/completions", json=CHAT | fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert reason in error["message"]
    assert len(error["message"]) <= 1000
    assert not param or error["param"] == param
    assert not backend.seen


async def test_the_next_request_is_answered_after_a_refusal(client, backend) -> None:
    for fields in ({"guided_regex": "(a"}, {"guided_regex": "(a"}):
        assert (await client.post("/v1/chat/completions", json=CHAT | fields)).status_code == 400
    assert (await client.post("/v1/chat/completions", json=CHAT | {"guided_regex": "(a)"})).status_code == 200
