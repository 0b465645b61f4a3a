"""Schemas that llguidance refuses or reads wrongly are rewritten; white space follows the depth of the schema."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from engine.grammar.grammar import Grammar, GrammarError
from engine.grammar.schemas import LITERAL, rewrite_schemas
from tests.support.grammars import PERSON, of_lark, tiny_grammars
from tests.support.tiny_models import tiny_tokenizer

GRAMMARS = tiny_grammars()
HIGHEST = 2**63 - 1
DECIMAL = "^(?!^[-+.]*$)[+-]?0*"  # as pydantic 2.12 begins the pattern of every Decimal


def grammar_of(schema: Any) -> Grammar:
    return Grammar(json.dumps({"grammars": [{"json_schema": schema}]}))


def admits(grammar: Grammar, text: str) -> bool:
    """Whether a text is complete under a grammar."""
    matcher = GRAMMARS.prepare(grammar).result().copy()
    tokens = tiny_tokenizer().encode(text, add_special_tokens=False)
    error = ""
    for token in tokens:
        error = error or matcher.advance(token)
    words, _ = matcher.words()
    return not error and bool(words[0] >> 2 & 1)  # token 2 ends the text


INTEGER = {"type": "integer"}


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"),
    [
        (INTEGER, [str(HIGHEST), "-9223372036854774784", "0"], [str(2**63), "1" * 20]),
        ({**INTEGER, "minimum": -(2**63), "maximum": HIGHEST}, [str(HIGHEST), "-1"], [str(2**63)]),
        ({**INTEGER, "minimum": 0, "maximum": 2**64 - 1}, [str(HIGHEST)], [str(2**63), "-1"]),
        ({**INTEGER, "minimum": 2**62}, [str(2**62)], [str(2**62 - 1)]),
        ({**INTEGER, "exclusiveMinimum": 2**62}, [str(2**62 + 2048)], [str(2**62)]),
        ({**INTEGER, "maximum": 2**60 + 129}, [str(2**60)], [str(2**60 + 256)]),  # the nearest double is too large
        ({**INTEGER, "exclusiveMaximum": 2**60}, [str(2**60 - 256)], [str(2**60)]),
        ({"type": ["integer", "null"]}, ["5", "null"], ["1" * 20]),
        ({"type": "number", "minimum": -(2**63), "maximum": HIGHEST}, ["0." + "1" * 10], ["0." + "1" * 11]),
        ({"type": "number", "minimum": 0, "maximum": 1e300}, ["5.5"], ["-5"]),
        ({"type": "number"}, ["1.5e300", "0." + "1" * 11], []),
        ({"const": HIGHEST}, [str(HIGHEST)], [str(2**63)]),
        ({"enum": [2**53 + 2, 3]}, [str(2**53 + 2), "3"], [str(2**53)]),
    ],
)
def test_bounds_of_64_bits_are_kept_to(schema: dict[str, Any], accepted: list[str], refused: list[str]) -> None:
    assert [text for text in accepted if not admits(grammar_of(schema), text)] == []
    assert [text for text in refused if admits(grammar_of(schema), text)] == []


@pytest.mark.parametrize("name", ["const", "enum"])
def test_an_integer_that_would_change_is_refused_with_its_value(name: str) -> None:
    with pytest.raises(GrammarError, match=rf"{name} holds {2**53 + 1}; an integer beyond 2\^53"):
        GRAMMARS.prepare(grammar_of({"items": {name: 2**53 + 1}})).result()


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"const": {"a": [2**53 + 1]}}, f"const holds {2**53 + 1};"),
        ({"enum": [1, {"a": 2**53 + 1}]}, f"enum holds {2**53 + 1};"),
        ({"const": 10**400}, "const holds 1000"),
        (
            {"const": -(2**63)},
            "const holds -9223372036854775808; integers must lie in -9223372036854774784 to 9223372036854775807",
        ),
        ({"enum": ["a", [{"b": -(2**63)}]]}, "enum holds -9223372036854775808;"),
        ({"const": 2**63}, "const holds 9223372036854775808;"),
        ({"type": "integer", "minimum": 2**63}, "minimum is 9223372036854775808; numbers with a bound must lie in"),
        ({"type": "integer", "minimum": 2**63, "maximum": 2**64}, "minimum is 9223372036854775808;"),
        ({"type": "integer", "maximum": -(2**63)}, "maximum is -9223372036854775808;"),
        ({"type": "number", "minimum": 1e20}, "minimum is 1e+20;"),
        ({"type": "number", "minimum": 1e20, "maximum": 1e21}, "minimum is 1e+20;"),
        *(
            ({"$ref": "#/default", "default": hidden}, "a schema holds a number below -9223372036854774784")
            for hidden in (
                {"const": -(2**63)},
                {"const": -(2**63) + 1},
                {"enum": [-(2**63) + 500]},
                {"type": "integer", "minimum": -(2.0**63), "maximum": -(2.0**63)},
                {"type": "integer", "minimum": -1e300, "maximum": -1e299},
            )
        ),
        (
            {"type": "number", "minimum": 1e-12, "maximum": 5e-12},
            "does not contain a number of at most 10 decimal places, the limit for a number with both bounds",
        ),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-10}, "at most 10 decimal places"),
    ],
)
def test_a_schema_with_a_number_that_cannot_be_read_exactly_is_refused(schema: dict[str, Any], reason: str) -> None:
    for grammar in (grammar_of(schema), of_lark(f'start: "a" %json {json.dumps(schema)}')):
        assert reason in GRAMMARS.state(grammar).error


def test_other_large_constants_and_narrow_bounds_are_accepted() -> None:
    assert admits(grammar_of({"const": {"a": [2**60, -(2**60)]}}), f'{{"a":[{2**60},{-(2**60)}]}}')
    assert admits(grammar_of({"type": "number", "minimum": 0.3, "maximum": 0.3}), "0.3")
    assert admits(grammar_of({"type": "integer", "minimum": 2**63 - 1}), str(2**63 - 1))


def test_an_integral_float_counts_as_an_integer() -> None:
    schema = {"type": "string", "minLength": 2.0, "maxLength": 3.0}
    for grammar in (grammar_of(schema), of_lark(f"start: %json {json.dumps(schema)}")):
        assert [admits(grammar, f'"{"a" * n}"') for n in (1, 2, 3, 4)] == [False, True, True, False]


@pytest.mark.parametrize("begin", ['"\\"', r"/\/"])
def test_a_literal_without_an_end_is_passed_over_once(begin: str) -> None:
    lark = "start: " + begin[0] + begin[1:] * 30_000  # a second search would take seconds
    assert LITERAL.sub("", lark) == "start: "
    assert rewrite_schemas(lark) == lark


def test_a_schema_that_cannot_be_rewritten_is_refused() -> None:
    deep = '{"allOf":[' * 480 + "{}" + "]}" * 480
    assert GRAMMARS.state(of_lark(f"start: %json {deep}")).error
    assert GRAMMARS.state(grammar_of({"$ref": "#/prefixItems/" + "9" * 5000, "prefixItems": [True]})).error


@pytest.mark.parametrize(
    "lark",
    [
        'start: "%json" | /%json {"format":"x"}/ | "a" // %json {"format":"x"}\n',
        'start: %json {"type":  "string",  "maxLength": 1} # not written anew\n',
    ],
)
def test_literals_and_readable_schemas_stay_as_they_were_written(lark: str) -> None:
    assert rewrite_schemas(lark) == lark
    changed = lark + 'b: %json {"format":"x"}\n'
    assert rewrite_schemas(changed) == lark + "b: %json {}\n"


@pytest.mark.parametrize(
    "tail",
    [
        r"\d*\.?\d*$",
        r"(?:\d{0,8}|(?=[\d.]{1,11}0*$)\d{0,8}\.\d{0,2}0*$)",
        r"(?:\d{0,5}|(?=[\d.]{1,6}0*$)\d*\.\d*0*$)",
        r"\d*\.?\d{0,3}0*$",
    ],
)
def test_a_decimal_pattern_with_look_ahead_is_enforced(tail: str) -> None:
    grammar = grammar_of({"type": "string", "pattern": DECIMAL + tail})
    for text in ("1", "1.5", "-.5", "+", "", "-", ".", "00012.30", "12.000000", "1.", "1.2345", "12345.6", "a1"):
        meant = re.search(f"{DECIMAL}{tail}$", text)  # one alternative of some lacks the end
        assert admits(grammar, json.dumps(text)) == bool(meant), text


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object", "propertyNames": {"type": "string", "title": "A name"}}, '{"a":1}'),
        ({"type": "object", "propertyNames": True}, "{}"),
        ({"type": "object", "propertyNames": {}}, "{}"),
        ({"type": "string", "format": "iban"}, '"a"'),
        ({"$ref": "#/components/schemas/A", "components": {"schemas": {"A": {"format": "money"}}}}, '"a"'),
        ({"type": "array", "items": {"const": 1}, "uniqueItems": True}, "[1,1]"),
        # Names of properties, and values, are no keywords.
        ({"properties": {"format": {"const": {"format": "x"}}}, "required": ["format"]}, '{"format":{"format":"x"}}'),
        ({"properties": {"uniqueItems": {"const": True}}, "required": ["uniqueItems"]}, '{"uniqueItems":true}'),
    ],
)
def test_keywords_that_change_nothing_are_accepted(schema: dict[str, Any], text: str) -> None:
    assert admits(grammar_of(schema), text)
    assert admits(of_lark(f"start: %json {json.dumps(schema)}"), text)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"propertyNames": {"pattern": "^a"}}, "propertyNames"),
        ({"type": "array", "contains": {"type": "integer"}}, "contains"),
        ({"type": "string", "pattern": "^(?!x)a"}, "parse error: ^(?!x)a error: look-around"),
        ({"type": "string", "pattern": "a(?<=b)"}, "parse error: a(?<=b) error: look-around"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(reason)):
        GRAMMARS.prepare(grammar_of(schema)).result()


def test_known_formats_are_enforced() -> None:
    grammar = grammar_of({"type": "string", "format": "date"})
    assert admits(grammar, '"2026-11-27"')
    assert not admits(grammar, '"2026-11-31"')


NODE = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
SHARED = {"type": "object", "properties": {"a": {"$ref": "#/$defs/p"}, "b": {"items": {"$ref": "#/$defs/p"}}}}
LEVELS: list[tuple[Any, int, str]] = [
    ({"type": "array", "items": {"type": "integer"}}, 1, "[#1]"),
    (PERSON, 1, '{#"name":"","kind":"town","age":7}'),
    ({"type": "array", "items": PERSON, "minItems": 1}, 2, '[{#"name":"","kind":"town","age":7}]'),
    (SHARED | {"$defs": {"p": {"type": "array", "items": {"type": "null"}}}}, 3, '{"b":[[#null]]}'),
    ({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, 8, '{#"next":null}'),
    ({"type": "object"}, 8, '{#"a":1}'),
    ({"type": "object", "additionalProperties": {"type": "array", "items": False}}, 1, '{#"a":[]}'),
    (True, 8, "[#1]"),
    ({"type": "array", "items": {"anyOf": [{"type": "null"}, {"$ref": "#name"}], "$anchor": "name"}}, 8, "[#null]"),
    ({"type": "string", "maxLength": 3}, 0, ""),
]


@pytest.mark.parametrize(("schema", "levels", "text"), LEVELS)
def test_a_line_break_is_indented_by_at_most_two_spaces_or_a_tab_a_level(schema: Any, levels: int, text: str) -> None:
    grammar = grammar_of(schema)
    for space in ("", " ", "\n", "\n" + 2 * levels * " ", "\n" + levels * "\t"):
        assert not text or admits(grammar, text.replace("#", space))
    for space in ("  ", "\n\n", "\t", "\n" + (2 * levels + 1) * " ", "\n" + (levels + 1) * "\t"):
        assert not text or not admits(grammar, text.replace("#", space))
    assert not admits(grammar, " " + text)


def test_any_white_space_on_demand() -> None:
    schema = {"type": "array", "x-guidance": {"whitespace_flexible": True}}
    assert admits(grammar_of(schema), "[\n\n\t\t  \n1  ]")
