"""Bounds the work that a grammar makes for llguidance where its own limits do not.

* **Forced text**: llguidance follows a forced text to its end before it makes a mask. Its limits count items of rules,
  not characters: a long text that is repeated a thousand times would take minutes. Forcing is turned off for such
  grammars. Their masks then allow every tokenization of the text, and the method ``grammar`` does not draft it.
* **multipleOf**: llguidance tracks the remainder of the digits so far, and several values under ``anyOf`` or ``allOf``
  by their least common multiple. Before the first mask it may visit all remainders, about 150,000 a second.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from engine.grammar.grammar import GrammarError
from engine.grammar.schemas import embedded_schemas, schema_of

MOST_FORCED = 64  # characters that one item may force; 2,000 items of this length take 0.3 s
UNFORCED = '%llguidance {"no_forcing": true}\n'  # first line of a Lark grammar

COUNT = re.compile(r"\{[^0-9}]*([0-9]+)")  # the least repetitions of a part of a pattern
NESTED = re.compile(r"\(|\}[?+*]*\{")  # if it matches, counts multiply; otherwise they add up
NOTES = frozenset({"description", "title", "$comment", "$id", "$schema", "$ref"})  # texts that occur in no answer

MOST_REMAINDERS = 10_000  # visiting them takes 0.1 s
MOST_PLACES = 8  # decimal places; more overflow 32 bits in llguidance

VALUE = re.compile(r'"multipleOf"\s*:\s*(-?[0-9][0-9.eE+-]*)')
ESCAPE = re.compile(r"\\u00([0-7][0-9a-fA-F])")  # JSON may escape any letter


def with_bounded_forcing(source: str) -> str:
    """Return the source, without forcing if one of its schemas holds a text that is long or often repeated."""
    if source.startswith(UNFORCED):
        return source
    if source.lstrip().startswith("{"):
        schema = schema_of(source)
        return f"{UNFORCED}start: %json {json.dumps(schema)}" if _may_force(schema) else source
    return UNFORCED + source if any(_may_force(schema) for _, _, schema in embedded_schemas(source)) else source


def _may_force(schema: Any) -> bool:
    """Whether a text, key or pattern of a schema may force more than ``MOST_FORCED`` characters."""
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
    """Return an upper bound of the characters that a text or pattern forces."""
    counts = [max(1.0, float(count)) for count in COUNT.findall(text)]
    return len(text) * math.prod(counts) if NESTED.search(text) else len(text) + sum(counts)


def check_multiples(source: str) -> None:
    """Refuse a grammar whose values of ``multipleOf``, taken together, have too many remainders.

    A string that looks like such a keyword counts too.

    Raises:
        GrammarError: too many; the message has the values and the limit.
    """
    text = ESCAPE.sub(lambda found: chr(int(found[1], 16)), source)
    values = {found[1]: scaled for found in VALUE.finditer(text) if (scaled := _scaled(found[1]))}
    places = max((places for _, places in values.values()), default=0)
    remainders = 1
    for digits, decimals in values.values():
        if places <= MOST_PLACES and remainders <= MOST_REMAINDERS:  # numbers of thousands of digits take long
            remainders = math.lcm(remainders, digits * 10 ** (places - decimals))
    if places > MOST_PLACES or remainders > MOST_REMAINDERS:
        shown = ", ".join(list(values)[:4])[:100]
        raise GrammarError(
            f"multipleOf is {shown}; values must have at most {MOST_PLACES} decimal places, and all of a grammar "
            f"together, written without the decimal point, a least common multiple of at most {MOST_REMAINDERS}"
        )


def _scaled(number: str) -> tuple[int, int] | None:
    """Return digits and decimal places as llguidance computes them in doubles; None if it refuses the number."""
    try:
        value = abs(float(number))
    except ValueError:
        return None
    if not value or math.isinf(value):
        return None
    places = 0
    while value % 1:
        value *= 10
        places += 1
    digits = int(value)
    while places and digits % 10 == 0:
        digits, places = digits // 10, places - 1
    return digits, places
