"""The tokens of the shortest answer that fits a schema are counted exactly, and never too many."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from engine.grammar.answer_matcher import AnswerMatcher
from engine.grammar.compiler import Grammars
from engine.grammar.grammar import Grammar, Thought
from engine.grammar.shortest import MOST_TAILS, ShortestTexts
from engine.grammar.whitespace import bounded_whitespace
from engine.grammar.words import forbidden
from engine.grammar.work_limits import UNFORCED
from tests.support.grammars import PERSON, of_regex, of_tokens, tiny_grammars

SINGLE = list('{}[]:,"ab-019 \ntruefalsn')
MERGES = [
    '{"',
    '":',
    '","',
    '":"',
    '"}',
    '":1',
    ', "',
    '": ',
    "[]",
    "{}",
    "10",
    "true",
    "1}",
    "],",
    "aa",
    'a"',
    '{"a":',
]
MERGES += ['["', '"]', "[1", "1]", ",1", "null", ",a", '":[', "1,", "99", '{\n "', " ", "a}", "}]", '""', ': "', '{"b']


def grammar_of(schema: Any, **options: Any) -> Grammar:
    return Grammar(json.dumps({"grammars": [{"json_schema": schema | ({"x-guidance": options} if options else {})}]}))


def object_of(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


ONE, NULL = {"const": 1}, {"type": "null"}
TEXT = {"type": "string", "maxLength": 2}
NODE = {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#/$defs/n"}, NULL]}}, "required": ["a"]}
SCHEMAS: dict[str, dict[str, Any]] = {
    "boolean": {"type": "boolean"},
    "enum": {"enum": ["aab", "baa", 10]},
    "string": {"type": "string", "minLength": 3, "maxLength": 4},
    "free": {},
    "positive": {"type": "integer", "minimum": 10, "maximum": 190},
    "negative": {"type": "integer", "minimum": -199, "exclusiveMaximum": -9},
    "object": object_of(["a"], a=TEXT),
    "optional": object_of(["b"], a=ONE, b=ONE),
    "nested": object_of(["a"], a=object_of(["b"], b=ONE)),
    "array": {"type": "array", "items": TEXT, "minItems": 2, "maxItems": 3},
    "tuple": {"type": "array", "prefixItems": [ONE, TEXT], "minItems": 2, "items": False},
    "union": {"anyOf": [object_of(["a"], a=ONE), {"type": "array", "items": ONE, "minItems": 3}]},
    "all": {"allOf": [object_of(["b"], b={"type": ["boolean", "null"]})]},
    "recursive": {"$ref": "#/$defs/n", "$defs": {"n": NODE | {"additionalProperties": False}}},
    "map": {"type": "object", "minProperties": 1, "additionalProperties": ONE},
    "constant": {"const": {"a": [1, True]}},
    "undeclared": {"type": "object", "required": ["a"], "additionalProperties": ONE},
}
SPACED = ("boolean", "object", "nested", "tuple", "map")  # few enough texts with white space


def vocabulary(seed: int) -> list[str]:
    draw = random.Random(seed)
    return list(dict.fromkeys([*SINGLE, *draw.sample(MERGES, 22)]))


def search(grammars: Grammars, schema: dict[str, Any], texts: list[str]) -> int:
    """The fewest tokens of a complete text, found by writing all texts, in any cut into tokens."""
    grammar = Grammar(f"{UNFORCED}start: %json {json.dumps(schema)}")
    frontier = {"": grammars.prepare(grammar).result()}
    for n_tokens in range(20):
        longer: dict[str, AnswerMatcher] = {}
        for text, matcher in frontier.items():
            allowed = np.flatnonzero(~forbidden(matcher.words()[0], len(texts) + 1)).tolist()
            if len(texts) in allowed:
                return n_tokens
            for token in allowed:
                if text + texts[token] not in longer:
                    longer[text + texts[token]] = after = matcher.copy()
                    after.advance(token)
        frontier = longer
    raise AssertionError("no text")


OTHER_SEEDS = [pytest.param(seed, marks=pytest.mark.matrix) for seed in range(1, 8)]


@pytest.mark.parametrize("seed", [0, *OTHER_SEEDS])
@pytest.mark.parametrize("name", SCHEMAS)
def test_the_count_is_that_of_a_search_over_all_texts(name: str, seed: int) -> None:
    texts, schema = vocabulary(seed), SCHEMAS[name]
    grammars = of_tokens(texts)
    compact = {"whitespace_flexible": False}
    found = search(grammars, schema | {"x-guidance": compact}, texts)
    assert grammars.count_shortest(grammar_of(schema, **compact)).result() == found
    if name in SPACED:
        spaced = {"whitespace_pattern": bounded_whitespace(schema)}
        found = search(grammars, schema | {"x-guidance": spaced}, texts)
        assert grammars.count_shortest(grammar_of(schema)).result() == found


@pytest.mark.parametrize(
    "schema",
    [
        object_of(["a"], a={"type": "string", "pattern": "^b{9}$"}),
        object_of(["a"], a={"type": "string", "format": "date"}),
        object_of(["a"], a={"allOf": [{"type": "string"}, {"minLength": 9}]}),
        object_of(["a"], a={"type": "number", "minimum": 1e10, "maximum": 2e10}),
        {"type": "integer", "multipleOf": 1000, "minimum": 1},
    ],
)
def test_what_is_not_counted_makes_no_count_too_large(schema: dict[str, Any]) -> None:
    count = ShortestTexts(text.encode() for text in SINGLE).count(grammar_of(schema).source)
    assert count is not None
    assert 1 <= count <= len('{"a":""}')


UNCOUNTED = [
    of_regex("a{30}"),
    grammar_of(PERSON, whitespace_pattern=" *"),
    Grammar(grammar_of(PERSON).source, thought=Thought("</think>")),
    Grammar(grammar_of(PERSON).source, of_regex("a").source),
    grammar_of({"$ref": "#"}),  # no text at all
    grammar_of({"type": "array", "minItems": 200, "items": {"type": "array", "items": PERSON, "minItems": 50}}),
]


@pytest.mark.parametrize("grammar", UNCOUNTED)
def test_other_grammars_are_not_counted(grammar: Grammar) -> None:
    assert tiny_grammars().count_shortest(grammar).result() is None


def test_counts_leave_little_in_memory() -> None:
    counts = ShortestTexts(text.encode() for text in [*SINGLE, *MERGES])
    for start in (1, 2000):
        schema = {"anyOf": [{"type": "string", "minLength": start + i} for i in range(500)]}
        counts.count(grammar_of(schema).source)
        assert len(counts._tails) < 100
        assert not counts._places
    counts.count(grammar_of({"enum": [f"{i:x}" for i in range(3000)]}).source)
    assert len(counts._tails) <= MOST_TAILS
