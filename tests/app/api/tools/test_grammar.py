"""A grammar of calls has every call that its family's parser reads, and names all tools."""

from __future__ import annotations

import json
import re

import pytest

from app.api.tools.answer import AnswerReader, Reading
from app.api.tools.families import FAMILIES
from app.api.tools.grammar import call_grammar, call_schema
from app.api.tools.parts import Arguments, CallBegin

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
    grammar = call_grammar(family, [("get_weather", CITY), ("now", None)], is_parallel=is_parallel)
    start, calls, *rules = grammar.splitlines()
    assert calls == "call: call_0 | call_1"
    schemas = [json.loads(rule.partition("%json ")[2]) for rule in rules]
    assert schemas == [call_schema(family, "get_weather", CITY), call_schema(family, "now", None)]
    assert bool(re.search(r"\)\*", start)) is is_parallel


def test_marks_that_are_special_tokens_are_written_by_their_ids() -> None:
    grammar = call_grammar(FAMILIES["mistral"], [("now", None)], is_parallel=False, special={"[TOOL_CALLS]": 5})
    assert grammar.startswith('start: <[5]> "[" call "]"\n')
    assert call_grammar(FAMILIES["mistral"], [("now", None)], is_parallel=False).startswith('start: "[TOOL_CALLS]"')


def test_a_grammar_needs_a_tool() -> None:
    with pytest.raises(ValueError, match="needs a function"):
        call_grammar(FAMILIES["hermes"], [], is_parallel=True)
