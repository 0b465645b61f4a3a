"""Which grammars are compiled without looking ahead for the text that they force.

llguidance follows a forced text to its end before it makes a mask, and counts the items of its rules but none of their
characters: a long one a thousand times would take minutes. Without forcing, masks allow every cut of such a text into
tokens, and the method ``grammar`` drafts none of it.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from engine.grammar.schemas import embedded_schemas, schema_of

MOST_FORCED = 64  # characters of a text that one item may force; 2,000 items of so many take 0.3 s
UNFORCED = '%llguidance {"no_forcing": true}\n'  # before a grammar in Lark's form

COUNT = re.compile(r"\{[^0-9}]*([0-9]+)")  # how often a part of a pattern stands at least
NESTED = re.compile(r"\(|\}[?+*]*\{")  # without it, counts of a pattern add up
NOTES = frozenset({"description", "title", "$comment", "$id", "$schema", "$ref"})  # texts that no answer holds


def with_bounded_forcing(source: str) -> str:
    """The source, without forcing where one of its schemas holds a text that is long or repeated often."""
    if source.startswith(UNFORCED):
        return source
    if source.lstrip().startswith("{"):
        schema = schema_of(source)
        return f"{UNFORCED}start: %json {json.dumps(schema)}" if _may_force(schema) else source
    return UNFORCED + source if any(_may_force(schema) for _, _, schema in embedded_schemas(source)) else source


def _may_force(schema: Any) -> bool:
    """Whether a schema holds a text, key or pattern from which more than ``MOST_FORCED`` characters may come."""
    todo = [(schema, True)]
    while todo:
        value, has_notes = todo.pop()
        if isinstance(value, list):
            todo += [(below, has_notes) for below in value]
        elif isinstance(value, str) and _forced(value) > MOST_FORCED:
            return True
        elif isinstance(value, dict):
            for name, below in value.items():
                if name == "minLength" and isinstance(below, int | float) and below > MOST_FORCED:
                    return True
                todo.append((name, False))
                if not (has_notes and name in NOTES and isinstance(below, str)):
                    todo.append((below, has_notes and name not in ("const", "enum")))
    return False


def _forced(text: str) -> float:
    """How many characters may come from a text, or from a pattern, without a choice; or more."""
    counts = [max(1.0, float(count)) for count in COUNT.findall(text)]
    return len(text) * math.prod(counts) if NESTED.search(text) else len(text) + sum(counts)
