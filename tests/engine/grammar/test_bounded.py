"""A schema whose strings, arrays and numbers are bounded always ends in a valid instance, whatever is drafted."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from engine.events import STOP
from engine.grammar.grammar import Grammar
from engine.request import Request
from engine.sampling.params import SamplingParams
from tests.engine.grammar.test_texts import EOS, target_of, written
from tests.support.engines import complete_all, make_engine
from tests.support.grammars import PERSON
from tests.support.tiny_models import tiny_tokenizer

WORD = {"type": "string", "maxLength": 5}
BOUNDED: dict[str, dict[str, Any]] = {
    "person": PERSON,
    "integers": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
    "number": {
        "type": "object",
        "properties": {"share": {"type": "number", "minimum": 0, "maximum": 1}, "ok": {"type": "boolean"}},
        "required": ["share", "ok"],
        "additionalProperties": False,
    },
    "nested": {
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": WORD, "maxItems": 2},
            "place": {"$ref": "#/$defs/place"},
        },
        "required": ["tags", "place"],
        "additionalProperties": False,
        "$defs": {"place": {"type": "object", "properties": {"x": WORD}, "additionalProperties": False}},
    },
    "union": {"anyOf": [{"type": "null"}, {"enum": ["a", 7]}, {"type": "array", "items": WORD, "maxItems": 3}]},
    "tuple": {"type": "array", "prefixItems": [WORD, {"type": "integer"}], "items": False, "minItems": 2},
    "decimal": {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", "maxLength": 9},
    "date": {"type": "string", "format": "date"},
}
STYLES = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 0.9, "seed": 11}}
MOST_TOKENS = 300  # more than the longest instance of any


def jobs(style: str, method: str) -> list[Request]:
    found = []
    for schema in BOUNDED.values():
        grammar = Grammar(json.dumps({"grammars": [{"json_schema": schema}]}))
        params = SamplingParams(max_tokens=MOST_TOKENS, stop_ids=(EOS,), grammar=grammar, **STYLES[style])
        found.append(Request(tiny_tokenizer().encode("Tell:"), params, method))
    return found


@cache
def plain_texts(checkpoint: Path, style: str) -> list[list[int]]:
    done = complete_all(make_engine(target_of(checkpoint)), jobs(style, ""))
    for (name, schema), each in zip(BOUNDED.items(), done, strict=True):
        assert each.finish_reason == STOP, f"{name}: {written(each.token_ids)!r}"
        jsonschema.validate(json.loads(written(each.token_ids)), schema)
    return [each.token_ids for each in done]


CELLS = [
    pytest.param(method, style, marks=[pytest.mark.matrix] * ((i + j) % 2 or i == 2))
    for i, method in enumerate(["suffix+token-recycling", "auto", "pld"])
    for j, style in enumerate(STYLES)
]


@pytest.mark.parametrize(("method", "style"), CELLS)
def test_bounded_schemas_end_valid_and_equal_with_speculation(method: str, style: str, tiny_checkpoint: Path) -> None:
    done = complete_all(make_engine(target_of(tiny_checkpoint)), jobs(style, method))
    assert [each.token_ids for each in done] == plain_texts(tiny_checkpoint, style)


def test_an_answer_that_is_cut_has_begun(tiny_checkpoint: Path) -> None:
    """Its tokens are not white space without end."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    grammar = Grammar(json.dumps({"grammars": [{"json_schema": schema}]}))
    params = SamplingParams(max_tokens=40, stop_ids=(EOS,), grammar=grammar, **STYLES["sampled"])
    (done,) = complete_all(make_engine(target_of(tiny_checkpoint)), [Request([5, 6], params)])
    assert '"a"' in written(done.token_ids)
