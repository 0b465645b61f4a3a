"""Rewrites JSON schemas into forms that llguidance honours.

Annotations and unsupported spellings that llguidance refuses are removed or expressed otherwise. A rewritten schema
admits no instance that the original refuses, with one exception: ``uniqueItems`` is dropped.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from engine.grammar.grammar import GrammarError
from engine.grammar.whitespace import as_list, bounded_whitespace

EXACT = 2**53  # llguidance reads numbers as doubles, which hold every integer up to here
LOWEST, HIGHEST = (
    -(2**63) + 1024,
    2**63 - 1,
)  # LOWEST fits a double, HIGHEST saturates 64 bits; -2**63 overflows when negated
DECIMAL_STEP = 1e-10  # bounds the decimal places of a number; with more, llguidance's 32 bits overflow
FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid"}
)
INSTANCES = frozenset({"const", "enum", "default", "example", "examples"})  # keywords with values, not schemas
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})  # name to schema
WHITESPACE_OPTIONS = frozenset({"whitespace_flexible", "whitespace_pattern"})

# Strings, patterns, special tokens and comments of a Lark grammar, as llguidance reads them. An unterminated one
# extends to the end of the grammar: llguidance refuses it, and searching from each character would take seconds.
LITERAL = re.compile(r'"(?:\\.|[^"\\])*+"?|/(?:\\.|[^/\\])++/?|<[^<>\s]+>|(?:#|//)[^\n]*')
EMBEDDED = re.compile(rf"{LITERAL.pattern}|(?P<schema>%json\s*)")
# Pydantic's patterns for a Decimal: at least one digit, and optionally a limit of characters before trailing zeros.
NEEDS_DIGIT = "^(?!^[-+.]*$)"
LIMITS_DIGITS = re.compile(r"\(\?=(\[\\d\.\]\{1,\d+\}0\*)\$\)")


def rewrite_schemas(source: str) -> str:
    """Return a grammar's source with rewritten schemas and, unless it is a Lark grammar, bounded white space.

    Raises:
        GrammarError: llguidance would change a number in a schema, or crash on it.
    """
    has_multiples = "multipleOf" in source
    if (schema := schema_of(source)) is not None:
        schema = _rewritten({} if schema is True else schema, has_multiples)
        if isinstance(schema, dict):
            options = schema.setdefault("x-guidance", {})
            if isinstance(options, dict) and not WHITESPACE_OPTIONS & options.keys():
                options["whitespace_pattern"] = bounded_whitespace(schema)
        return json.dumps({"grammars": [{"json_schema": schema}]})
    parts, end = [], 0
    for start, stop, schema in embedded_schemas(source):
        before = json.dumps(schema)
        if (after := json.dumps(_rewritten(schema, has_multiples))) != before:  # as texts: 2.0 equals 2
            parts += [source[end:start], after]
            end = stop
    return "".join([*parts, source[end:]])


def schema_of(source: str) -> Any:
    """Return the schema of a JSON grammar, or None if there is none (the compiler reports that)."""
    if not source.lstrip().startswith("{"):
        return None
    try:
        return json.loads(source)["grammars"][0].get("json_schema")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def embedded_schemas(lark: str) -> Iterator[tuple[int, int, Any]]:
    """Yield the schemas of a Lark grammar with the positions where each starts and stops."""
    end = 0
    while found := EMBEDDED.search(lark, end):
        end = found.end()
        if not found["schema"]:
            continue
        try:
            schema, stop = json.JSONDecoder().raw_decode(lark, end)
        except (ValueError, RecursionError):
            continue
        yield end, stop, schema
        end = stop


def _rewritten(schema: Any, has_multiples: bool) -> Any:
    todo = [(schema, False)]
    while todo:
        value, is_map = todo.pop()
        if isinstance(value, list):
            todo += [(below, False) for below in value]
        elif isinstance(value, dict):
            if not is_map:
                _rewrite_keywords(value, has_multiples)
            todo += [
                (below, not is_map and name in MAPS) for name, below in value.items() if is_map or name not in INSTANCES
            ]
    if any(number < LOWEST for number in _numbers(schema)):
        # Some of them crash llguidance, and $ref may point into any value.
        raise GrammarError(f"a schema holds a number below {LOWEST}")
    return schema


def _rewrite_keywords(schema: dict[str, Any], has_multiples: bool) -> None:
    if isinstance(schema.get("uniqueItems"), bool):
        del schema["uniqueItems"]
    if isinstance(schema.get("format"), str) and schema["format"] not in FORMATS:
        del schema["format"]
    if _is_any_name(schema.get("propertyNames")):
        del schema["propertyNames"]
    if str(schema.get("pattern")).startswith(NEEDS_DIGIT):
        schema["pattern"], *others = _patterns_of_decimal(schema["pattern"])
        patterns = [{"type": "string", "pattern": other} for other in others]
        schema["allOf"] = [*as_list(schema.get("allOf")), *patterns]
    for name in ("const", "enum"):
        _check_integers(name, schema.get(name))
    for name in COUNTS:
        if isinstance(schema.get(name), float) and schema[name].is_integer():
            schema[name] = int(schema[name])
    _rewrite_bounds(schema, has_multiples)


def _is_any_name(names: Any) -> bool:
    """Whether ``propertyNames`` admits every name."""
    if not isinstance(names, dict):
        return names is True
    return names.keys() <= {"type", "title", "description"} and names.get("type", "string") == "string"


def _patterns_of_decimal(pattern: str) -> list[str]:
    """Return patterns without look-ahead whose conjunction equals the pattern of a Decimal."""
    body = pattern.removeprefix(NEEDS_DIGIT)
    widths = [f"^[+-]?0*{width}$" for width in LIMITS_DIGITS.findall(body)]
    return [f"^{LIMITS_DIGITS.sub('', body).replace('$', '')}$", "[0-9]", *widths]


def _check_integers(name: str, value: Any) -> None:
    for one in _numbers(value):
        if isinstance(one, float):
            continue
        if not LOWEST <= one <= HIGHEST:
            raise GrammarError(f"{name} holds {str(one)[:50]}; integers must lie in {LOWEST} to {HIGHEST}")
        if abs(one) > EXACT and one != HIGHEST and int(float(one)) != one:
            raise GrammarError(f"{name} holds {one}; an integer beyond 2^53 must be one that a double can hold")


def _numbers(value: Any) -> Iterator[int | float]:
    """Yield all numbers in a JSON value."""
    todo = [value]
    while todo:
        one = todo.pop()
        todo += one.values() if isinstance(one, dict) else as_list(one)
        if _is_number(one):
            yield one


def _rewrite_bounds(schema: dict[str, Any], has_multiples: bool) -> None:
    """Round bounds inwards to values that llguidance holds exactly; limit integers to 64 bits, and decimal places."""
    types = as_list(schema.get("type")) or [schema.get("type")]
    is_integer = "integer" in types and "number" not in types
    if is_integer:
        schema.setdefault("minimum", LOWEST)
        schema.setdefault("maximum", HIGHEST)
    lower = [name for name in ("minimum", "exclusiveMinimum") if _is_number(schema.get(name))]
    upper = [name for name in ("maximum", "exclusiveMaximum") if _is_number(schema.get(name))]
    for name in (*lower, *upper):
        if (name in lower and schema[name] > HIGHEST) or (name in upper and schema[name] < LOWEST):
            shown = str(schema[name])[:50]
            raise GrammarError(f"{name} is {shown}; numbers with a bound must lie in {LOWEST} to {HIGHEST}")
    for name in lower:
        schema[name] = max(-_rounded_down(-schema[name], is_integer and name.startswith("ex")), LOWEST)
    for name in upper:
        highest = HIGHEST if is_integer else -LOWEST
        schema[name] = min(_rounded_down(schema[name], is_integer and name.startswith("ex")), highest)
    if "number" in types and lower and upper and not has_multiples:
        schema["multipleOf"] = DECIMAL_STEP


def _rounded_down(bound: float, is_exclusive: bool) -> float:
    """Return the largest double at most ``bound`` (below it if exclusive); keep the highest 64-bit integer."""
    if not isinstance(bound, int) or not EXACT <= abs(bound) <= 10**300 or bound == HIGHEST:
        return bound
    bound -= is_exclusive  # llguidance adds one to a double, which has no effect at this size
    rounded = float(bound)
    return int(rounded if rounded <= bound else math.nextafter(rounded, -math.inf))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
