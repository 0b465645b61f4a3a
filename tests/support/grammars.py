"""Grammars for the tiny checkpoint's tokenizer and for one of single letters."""

from __future__ import annotations

import json
from typing import Any

import llguidance

from engine.grammar.compiler import Grammars
from engine.grammar.grammar import Grammar
from tests.support.tiny_models import tiny_tokenizer

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["quick fox", "lazy dog", "town"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "kind", "age"],
    "additionalProperties": False,
}


def of_schema(schema: dict[str, Any], whitespace: bool = True) -> Grammar:
    overrides: Any = {"whitespace_flexible": whitespace}
    return Grammar(llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=overrides))


def of_regex(regex: str) -> Grammar:
    return Grammar(llguidance.LLMatcher.grammar_from_regex(regex))


def of_lark(lark: str) -> Grammar:
    return Grammar(llguidance.LLMatcher.grammar_from_lark(lark))


def tiny_grammars() -> Grammars:
    tokenizer = tiny_tokenizer()
    return Grammars(lambda: tokenizer.backend_tokenizer.to_str(), (2,), len(tokenizer))


def letters(n: int = 3, vocab_size: int | None = None) -> Grammars:
    """Of a vocabulary of the first ``n`` letters, each a token, and an end token; a model may have more ids."""
    return of_tokens([chr(ord("a") + i) for i in range(n)], vocab_size)


def of_tokens(texts: list[str], vocab_size: int | None = None) -> Grammars:
    """Of a vocabulary of these ASCII texts and an end token, which is the last one."""
    n = len(texts)
    vocab = {text.replace(" ", "Ġ").replace("\n", "Ċ"): i for i, text in enumerate(texts)} | {"<end>": n}
    added = {"id": n, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False}
    text = json.dumps(
        {
            "version": "1.0",
            "added_tokens": [added | {"normalized": False, "special": True}],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        }
    )
    return Grammars(lambda: text, (n,), n + 1 if vocab_size is None else vocab_size)
