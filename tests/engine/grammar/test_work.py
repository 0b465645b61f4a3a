"""Small grammars that need much work are refused, or compiled so that their masks never do that work.

Without the limits most of these take minutes, or the memory of the machine.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from engine.grammar.grammar import Grammar, GrammarError
from engine.grammar.words import forbidden
from engine.grammar.work_limits import MOST_FORCED, UNFORCED, check_multiples, with_bounded_forcing
from tests.support.grammars import PERSON, of_lark, of_regex, of_schema, tiny_grammars
from tests.support.tiny_models import tiny_tokenizer

GRAMMARS = tiny_grammars()


def number(multiple: float, **more: Any) -> dict[str, Any]:
    return {"type": "number", "multipleOf": multiple, **more}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "array", "items": number(10_007)}, "10007"),
        (number(12345.678), "12345.678"),
        (number(-2_000_003), "-2000003"),
        (number(1e-9), "1e-9"),
        ({"anyOf": [number(9001), number(9007)]}, "9001, 9007"),  # the states of both count together
        ({"allOf": [number(0.0625), number(3), number(7)]}, "0.0625, 3, 7"),
    ],
)
def test_a_multiple_with_too_many_remainders_is_refused_with_its_value(schema: dict[str, Any], value: str) -> None:
    with pytest.raises(GrammarError, match=r"multipleOf is .*at most 8 decimal places.*at most 10000") as caught:
        GRAMMARS.prepare(of_schema(schema)).result()
    assert value in str(caught.value).replace("e-09", "e-9")


@pytest.mark.parametrize(
    "schema",
    [
        number(1e-7),
        number(9973),
        number(0),  # llguidance refuses it itself
        {"properties": {"a": number(0.01), "b": number(60), "c": number(1)}},
        {"properties": {"multipleOf": {"const": 7}}, "title": 'no "multipleOf": 30000001 but text'},
    ],
)
def test_usual_multiples_are_accepted(schema: dict[str, Any]) -> None:
    check_multiples(of_schema(schema).source)


@pytest.mark.parametrize("key", ["multipleOf", r"\u006dultip\u006ceOf"])
def test_a_schema_in_a_lark_grammar_hides_no_multiple(key: str) -> None:
    with pytest.raises(GrammarError, match="multipleOf is 2000003"):
        GRAMMARS.prepare(of_lark(f'start: "a" %json {{"type": "integer", "{key}"\n : 2000003}}')).result()


@pytest.mark.parametrize(
    "grammar",
    [
        of_regex("(a{1000}){1000}"),
        of_regex("a{1000000}"),
        of_lark('start: A20\nA0: "a"\n' + "\n".join(f"A{i + 1}: A{i} A{i}" for i in range(20))),
        of_lark("start: A\nA: /(a{997})+/ & /(a{991})+/"),
    ],
)
def test_a_grammar_whose_first_mask_takes_too_much_work_is_refused(grammar: Grammar) -> None:
    with pytest.raises(GrammarError, match=r"no text can begin|fuel|too big"):
        GRAMMARS.prepare(grammar).result()


LONG = "a" * (MOST_FORCED + 1)
FORCES = [
    {"const": LONG},
    {"enum": ["a", LONG]},
    {"const": {"description": LONG}},
    {"properties": {LONG: True}},
    {"properties": {"description": {"const": LONG}}},
    {"type": "string", "pattern": "^(a{9,}){9}$"},
    {"type": "string", "pattern": "a{9}{9,}?{9}"},
    {"type": "string", "pattern": "a{1}b{1}c{70}"},
    {"type": "string", "pattern": "^a*$", "minLength": MOST_FORCED + 1},
]


@pytest.mark.parametrize("schema", FORCES)
def test_a_schema_with_long_texts_is_compiled_without_forcing(schema: dict[str, Any]) -> None:
    grammars = [of_schema(schema), of_lark(f"start: %json {json.dumps({'items': schema})}")]
    for grammar in grammars:
        assert with_bounded_forcing(grammar.source).startswith(UNFORCED)
        assert GRAMMARS.prepare(grammar).result()


@pytest.mark.parametrize(
    "schema",
    [
        PERSON,
        {"description": LONG},
        {"items": {"$ref": "#/$defs/a"}, "title": LONG},
        {"pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
        {"pattern": "^(north|south)-[a-f]+$"},
    ],
)
def test_usual_schemas_are_forced(schema: dict[str, Any]) -> None:
    schema = schema | {"$defs": {"a": {"type": "string", "maxLength": 5000}}}
    for grammar in (of_schema(schema), of_lark(f"start: %json {json.dumps(schema)}")):
        assert with_bounded_forcing(grammar.source) == grammar.source


def test_a_long_constant_many_times_needs_no_look_ahead() -> None:
    """With forcing it takes 40 s and 1.7 GB."""
    grammar = of_schema({"type": "array", "items": {"const": "a" * 10_000}, "minItems": 1000}, whitespace=False)
    state = GRAMMARS.state(grammar)
    for _ in range(50):
        tokens = np.flatnonzero(~forbidden(state.words(), len(tiny_tokenizer())))
        state.advance(int(tokens[0]))
        assert not state.error
    assert state.forced() == []


def test_a_schema_means_the_same_without_forcing() -> None:
    schema = PERSON | {"properties": PERSON["properties"] | {"kind": {"enum": ["town", LONG]}}}
    grammar = of_schema(schema, whitespace=False)
    tokens = tiny_tokenizer().encode('{"name":"ab","kind":"town","age":7}', add_special_tokens=False)
    assert not GRAMMARS.state(grammar, tokens).error
    assert GRAMMARS.state(grammar, [*tokens, tokens[-1]]).error
