"""A grammar of calls has every call that its family's parser reads, and names all tools."""

from __future__ import annotations

import json
import re

import pytest

from app.api.tools.answer import AnswerReader, Reading
from app.api.tools.families import FAMILIES
from app.api.tools.grammar import CallGrammars, call_schema
from app.api.tools.parts import Arguments, CallBegin
from engine.grammar.state import has
from tests.support.grammars import of_lark, tiny_grammars
from tests.support.tiny_models import tiny_tokenizer

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_what_a_schema_describes_is_a_call_to_the_parser(family) -> None:
    schema = call_schema(family, "get_weather", CITY)
    assert schema["required"] == ["name", family.arguments]
    assert schema["properties"][family.arguments] == CITY
    text = json.dumps({"name": schema["properties"]["name"]["const"], family.arguments: {"city": "Zug"}})
    reader = AnswerReader(Reading(family, frozenset({"get_weather"})))
    begin, arguments = reader.push(family.opens[0] + text) + reader.flush()
    assert isinstance(begin, CallBegin)
    assert (begin.name, arguments) == ("get_weather", Arguments(0, '{"city": "Zug"}'))


@pytest.mark.parametrize("is_parallel", [True, False])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_grammar_has_a_rule_for_every_tool(family, is_parallel: bool) -> None:
    grammar = CallGrammars(family, [("get_weather", CITY), ("now", None)], is_parallel).forced()
    start, calls, *rules = grammar.splitlines()
    assert calls == "call: call_0 | call_1"
    schemas = [json.loads(rule.partition("%json ")[2]) for rule in rules]
    assert schemas == [call_schema(family, "get_weather", CITY), call_schema(family, "now", None)]
    assert bool(re.search(r"\)\*", start)) is is_parallel


def test_marks_that_are_special_tokens_are_written_by_their_ids() -> None:
    grammar = CallGrammars(FAMILIES["mistral"], [("now", None)], False, {"[TOOL_CALLS]": 5}).forced()
    assert grammar.startswith('start: <[5]> "[" call "]"\n')
    assert CallGrammars(FAMILIES["mistral"], [("now", None)], False).forced().startswith('start: "[TOOL_CALLS]"')


def test_a_grammar_needs_a_tool() -> None:
    with pytest.raises(ValueError, match="needs a function"):
        CallGrammars(FAMILIES["hermes"], [], True)


DAYS = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["days"],
    "additionalProperties": False,
}


def accepted(family: str, text: str, close: str = "", *, is_parallel: bool = True) -> tuple[str, bool]:
    """How much of an answer that may call tools is allowed, token by token, and whether it may end there."""
    calls = CallGrammars(FAMILIES[family], [("rain", DAYS), ("snow", None)], is_parallel)
    state = tiny_grammars().state(of_lark(calls.allowed(close)))
    assert not state.error
    tokenizer, had = tiny_tokenizer(), []
    for token in tokenizer.encode(text, add_special_tokens=False):
        if not has(state.words(), token):
            break
        state.advance(token)
        had.append(token)
    return tokenizer.decode(had), has(state.words(), tokenizer.eos_token_id)


def call(family: str, arguments: str, name: str = "rain") -> str:
    body = f'{{"name": "{name}", "{FAMILIES[family].arguments}": {arguments}}}'
    return {"hermes": f"<tool_call>\n{body}\n</tool_call>", "llama3": body, "mistral": f"[TOOL_CALLS][{body}]"}[family]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", ["", "It rains.", 'As JSON: {"a": 1}', "a < b, <tool, [TOOL", '{"names": ["rain"]}'])
def test_an_answer_that_may_call_tools_is_any_text(family: str, text: str) -> None:
    assert accepted(family, text) == (text, True)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_in_it_is_kept_to_its_schema(family: str) -> None:
    right = call(family, '{"days": 3}')
    assert accepted(family, right) == (right, True)
    assert accepted(family, call(family, '{"anything": [1]}', "snow"))[1]
    for wrong in (call(family, '{"days": 30}'), call(family, '{"day": 3}'), call(family, "3")):
        had, may_end = accepted(family, wrong)
        assert wrong.startswith(had)
        assert not may_end
    if family != "llama3":  # where an object of another name is a text, and behind a text one needs a mark
        assert accepted(family, call(family, "{}", "hail")) == (call(family, "{}", "").partition('", "')[0], False)
        assert accepted(family, f"Well: {right}") == (f"Well: {right}", True)
    assert accepted(family, "Well. " + FAMILIES[family].opens[0]) == ("Well. " + FAMILIES[family].opens[0], False)


@pytest.mark.parametrize("is_parallel", [True, False])
@pytest.mark.parametrize(("family", "between"), [("hermes", "\n"), ("llama3", "; ")])
def test_there_are_several_only_if_they_may_be(family: str, between: str, is_parallel: bool) -> None:
    text = between.join([call(family, '{"days": 3}'), call(family, '{"days": 4}')])
    had, _ = accepted(family, text, is_parallel=is_parallel)
    assert (had == text) is is_parallel


@pytest.mark.parametrize(
    "text", ['{"name":"rain"}', '{ "name" : "rain", "x": 1}', '\n{"name": "r\\u0061in"}', '{"name": "rain"}']
)
def test_what_a_parser_would_take_for_a_call_without_a_mark_is_none_but_as_the_schema_has_it(text: str) -> None:
    had, _ = accepted("llama3", text)
    assert text.startswith(had)
    assert had != text


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_thought_is_free(family: str) -> None:
    thought = f"Should I say {call(family, '{}')}? No.</think>"
    right = call(family, '{"days": 3}')
    assert accepted(family, thought + right, "</think>") == (thought + right, True)
    had, may_end = accepted(family, thought + call(family, '{"days": 30}'), "</think>")
    assert had.startswith(thought)
    assert not may_end


def test_a_mark_that_is_a_special_token_begins_a_call_in_any_text() -> None:
    tokenizer = tiny_tokenizer()
    opens, other = tokenizer.convert_tokens_to_ids(["<|system|>", "<|user|>"])
    calls = CallGrammars(FAMILIES["hermes"], [("rain", DAYS)], True, {"<tool_call>": opens})
    state = tiny_grammars().state(of_lark(calls.allowed()))
    for token in tokenizer.encode("So <tool_call is no mark. ", add_special_tokens=False):
        assert has(state.words(), opens)
        assert not has(state.words(), other)
        assert has(state.words(), token)
        state.advance(token)
    state.advance(opens)
    assert not has(state.words(), tokenizer.eos_token_id)
    for token in tokenizer.encode(
        '\n{"name": "rain", "arguments": {"days": 3}}\n</tool_call>', add_special_tokens=False
    ):
        assert has(state.words(), token)
        state.advance(token)
    assert has(state.words(), tokenizer.eos_token_id)
