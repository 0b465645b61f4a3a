"""Grammars of calls: every call that they allow is read by its family's parser, and every text around is free."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.api.tools.families import FAMILIES
from app.api.tools.grammar import CallGrammars
from engine.grammar.grammar import Grammar, Thought
from engine.grammar.words import has
from tests.support.grammars import of_lark, tiny_grammars
from tests.support.tiny_models import tiny_tokenizer

GRAMMARS = tiny_grammars()
DAYS = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["days"],
    "additionalProperties": False,
}


def allowed(family: str, text: str, thought: Thought | None = None, *, is_parallel: bool = True) -> tuple[str, bool]:
    """How much of an answer that may call tools is allowed, token by token, and whether it may end there."""
    calls = CallGrammars(FAMILIES[family], [("rain", DAYS), ("snow", None)], is_parallel)
    return answered(msgspec.structs.replace(of_lark(calls.allowed()), thought=thought), text)


def answered(grammar: Grammar, text: str) -> tuple[str, bool]:
    state = GRAMMARS.state(grammar)
    assert not state.error
    tokenizer, taken = tiny_tokenizer(), []
    for token in tokenizer.encode(text, add_special_tokens=False):
        if not has(state.words(), token):
            break
        state.advance(token)
        taken.append(token)
    return tokenizer.decode(taken), has(state.words(), tokenizer.eos_token_id)


def call(family: str, arguments: str, name: str = "rain") -> str:
    body = f'{{"name": "{name}", "{FAMILIES[family].arguments}": {arguments}}}'
    return {"hermes": f"<tool_call>\n{body}\n</tool_call>", "llama3": body, "mistral": f"[TOOL_CALLS][{body}]"}[family]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_is_any_text_or_a_call_kept_to_its_schema(family: str) -> None:
    for text in ("", "It rains.", 'As JSON: {"a": 1}', "a < b, <tool, [TOOL", '{"names": ["rain"]}'):
        assert allowed(family, text) == (text, True)
    right = call(family, '{"days": 3}')
    assert allowed(family, right) == (right, True)
    assert allowed(family, call(family, '{"anything": [1]}', "snow"))[1]
    for wrong in (call(family, '{"days": 30}'), call(family, '{"day": 3}'), call(family, "3")):
        taken, may_end = allowed(family, wrong)
        assert wrong.startswith(taken)
        assert not may_end
    if family != "llama3":  # where an object of another name is text, and a call after text needs a mark
        assert allowed(family, call(family, "{}", "hail")) == (call(family, "{}", "").partition('", "')[0], False)
        assert allowed(family, f"Well: {right}") == (f"Well: {right}", True)
    assert allowed(family, "Well. " + FAMILIES[family].opens) == ("Well. " + FAMILIES[family].opens, False)


PLACE = {"type": "object", "properties": {"town": {"const": "Oslo"}}, "additionalProperties": False}
TREE = {"type": "object", "properties": {"below": {"$ref": "#"}, "town": True}, "additionalProperties": False}
LIST = {"type": "object", "properties": {"next": {"$ref": "#/$defs/L"}}, "additionalProperties": False}
DRAFT_7, DRAFT_2020 = "http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"
NESTED: list[tuple[dict[str, Any], str, str]] = [
    (DAYS | {"properties": {"days": {"$ref": "#/$defs/P"}}, "$defs": {"P": PLACE}}, '{"days": {"town": "Oslo"}}', "{}"),
    ({"$ref": "#/$defs/P", "$defs": {"P": PLACE}}, '{"town": "Oslo"}', '{"town": "Rome"}'),
    ({"$schema": DRAFT_7, "$ref": "#/$defs/P", "$defs": {"P": PLACE}}, '{"town": "Oslo"}', '{"town": "Rome"}'),
    ({"$ref": "#/$defs/L", "$defs": {"L": LIST}}, '{"next": {"next": {}}}', '{"next": {"name": "rain"}}'),
    (TREE | {"$schema": DRAFT_2020}, '{"below": {"town": {"$ref": "#"}}}', '{"below": {"name": "rain"}}'),
    *(
        (TREE | {"$id": own}, '{"below": {}}', '{"below": {"name": "rain"}}')
        for own in ("https://example.org/tree", "tree.json", "", "#")
    ),
]


@pytest.mark.parametrize(("parameters", "right", "wrong"), NESTED)
@pytest.mark.parametrize("family", FAMILIES)
def test_references_point_into_the_parameters(family: str, parameters: dict[str, Any], right: str, wrong: str) -> None:
    calls = CallGrammars(FAMILIES[family], [("rain", parameters)], True)
    for source in (calls.allowed(), calls.forced()):
        assert answered(of_lark(source), call(family, right))[1]
        assert not answered(of_lark(source), call(family, wrong))[1]


@pytest.mark.parametrize(("family", "between"), [("hermes", "\n"), ("llama3", "; ")])
def test_several_calls_are_allowed_only_if_parallel(family: str, between: str) -> None:
    text = between.join([call(family, '{"days": 3}'), call(family, '{"days": 4}')])
    for is_parallel in (True, False):
        assert (allowed(family, text, is_parallel=is_parallel)[0] == text) is is_parallel


@pytest.mark.parametrize(
    "text", ['{"name":"rain"}', '{ "name" : "rain", "x": 1}', '\n{"name": "r\\u0061in"}', '{"name": "rain"}']
)
def test_json_that_the_parser_would_take_for_a_call_needs_its_schema(text: str) -> None:
    taken, _ = allowed("llama3", text)
    assert text.startswith(taken)
    assert taken != text


@pytest.mark.parametrize("family", FAMILIES)
def test_reasoning_is_free_text(family: str) -> None:
    thought = f"Should I say {call(family, '{}')}? No.</think>"
    right = call(family, '{"days": 3}')
    inside = Thought("</think>")
    assert allowed(family, thought + right, inside) == (thought + right, True)
    taken, may_end = allowed(family, thought + call(family, '{"days": 30}'), inside)
    assert taken.startswith(thought)
    assert not may_end


def test_a_mark_that_is_a_special_token_begins_a_call_in_any_text() -> None:
    tokenizer = tiny_tokenizer()
    opens, other = tokenizer.convert_tokens_to_ids(["<|system|>", "<|user|>"])
    calls = CallGrammars(FAMILIES["hermes"], [("rain", DAYS)], True, {"<tool_call>": opens})
    state = tiny_grammars().state(of_lark(calls.allowed()))

    def take(*tokens: int) -> None:
        for token in tokens:
            assert has(state.words(), token)
            state.advance(token)

    def ids(text: str) -> Any:
        return tokenizer.encode(text, add_special_tokens=False)

    take(*ids("So <tool_call is no mark. "))
    assert not has(state.words(), other)
    take(opens)
    assert not has(state.words(), tokenizer.eos_token_id)
    take(*ids('\n{"name": "rain", "arguments": {"days": 3}}\n</tool_call>'))
    assert has(state.words(), tokenizer.eos_token_id)
