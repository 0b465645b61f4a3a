"""Builds the texts that a JSON schema admits, as alternatives of literal bytes and holes.

The texts include all that the compiled grammar admits, and more: lengths have no upper bound, patterns and formats
admit any text, and only one of several conditions on a value is kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from engine.grammar.whitespace import WITHIN, as_list, count_levels, resolve_reference

MOST_REPEATED = 256  # required items or members; more are left out
TEXT, DIGITS, NUMBER = "text", "digits", "number"


class Hole(NamedTuple):
    """Any characters of one kind, at least ``least``."""

    kind: str
    least: int


@dataclass(eq=False, slots=True)
class Alternatives:
    """A choice between sequences of parts; a part may be this object again (recursive schemas)."""

    options: list[tuple[Part, ...]] = field(default_factory=list)


Part = bytes | Hole | Alternatives
QUOTED = (b'"', Hole(TEXT, 0), b'"')


class Instances:
    """Builds the texts of the schemas in one document."""

    def __init__(self, root: Any, *, is_compact: bool) -> None:
        self._root = root
        levels = 0 if is_compact else count_levels(root)
        spaces = [] if is_compact else [b" ", *(b"\n" + n * b" " for n in range(2 * levels + 1))]
        tabs = [b"\n" + n * b"\t" for n in range(1, levels + 1)]
        self._space = Alternatives([(), *((space,) for space in [*spaces, *tabs])])
        self._known: dict[
            int, tuple[Any, Alternatives]
        ] = {}  # by id; the schema is kept so that no other object gets its id

    def of(self, schema: Any) -> Alternatives:
        """Return the texts that a schema admits."""
        known = self._known.get(id(schema))
        if known is None:
            known = self._known[id(schema)] = schema, Alternatives()
            known[1].options += self._options(schema)
        return known[1]

    def _options(self, schema: Any) -> list[tuple[Part, ...]]:
        if schema is False:
            return []
        if not isinstance(schema, dict):
            return self._options({})
        if "$ref" in schema:
            return [(self.of(resolve_reference(schema["$ref"], self._root)),)]
        for name in ("const", "enum"):
            if name in schema:
                return [self._literal(value) for value in (as_list(schema[name]) if name == "enum" else [schema[name]])]
        if not {"properties", "required", "items", "prefixItems"} & schema.keys():
            for name in WITHIN:
                if branches := as_list(schema.get(name)):
                    return [(self.of(branch),) for branch in (branches[:1] if name == "allOf" else branches)]
        kinds = as_list(schema.get("type")) or [schema.get("type")]
        by_kind = self._by_kind(schema)
        known = [kind for kind in kinds if kind in by_kind] or [*by_kind]
        return [option for kind in known for option in by_kind[kind]]

    def _by_kind(self, schema: dict[str, Any]) -> dict[str, list[tuple[Part, ...]]]:
        return {
            "null": [(b"null",)],
            "boolean": [(b"true",), (b"false",)],
            "integer": _integers(schema),
            "number": [(Hole(NUMBER, 1),)],
            "string": [(b'"', Hole(TEXT, _count(schema, "minLength")), b'"')],
            "array": [self._array(schema)],
            "object": [self._object(schema)],
        }

    def _literal(self, value: Any) -> tuple[Part, ...]:
        if isinstance(value, dict):
            constants = {name: {"const": below} for name, below in value.items()}
            return (self.of({"type": "object", "properties": constants, "required": [*constants]}),)
        if isinstance(value, list):
            return (self.of({"type": "array", "prefixItems": [{"const": v} for v in value], "minItems": len(value)}),)
        if isinstance(value, float):
            return (Hole(NUMBER, 1),)
        text = json.dumps(value, ensure_ascii=False)
        if "\\" in text or not text.isprintable():  # several spellings
            return (b'"', Hole(TEXT, len(value)), b'"')
        return (text.encode(),)

    def _array(self, schema: dict[str, Any]) -> tuple[Part, ...]:
        items = schema.get("items", True)
        first = as_list(schema.get("prefixItems")) or as_list(items)
        item = True if isinstance(items, list) else items
        least = _count(schema, "minItems")
        count = max(len(first), least)
        members = [((self.of(first[i] if i < len(first) else item), self._space), i < least) for i in range(count)]
        return (b"[", self._space, self._members(members, (self.of(item), self._space)), b"]")

    def _object(self, schema: dict[str, Any]) -> tuple[Part, ...]:
        free = True if "patternProperties" in schema else schema.get("additionalProperties", True)
        properties = schema["properties"] if isinstance(schema.get("properties"), dict) else {}
        required = [name for name in as_list(schema.get("required")) if isinstance(name, str)]
        named = dict.fromkeys(required, free) | properties
        order = [*properties, *(name for name in named if name not in properties)]
        members = [(self._member(self._literal(name), named[name]), name in required) for name in order]
        if not members:
            members = [(self._member(QUOTED, free), True)] * _count(schema, "minProperties")
        return (b"{", self._space, self._members(members), b"}")

    def _member(self, key: tuple[Part, ...], value: Any) -> tuple[Part, ...]:
        return (*key, self._space, b":", self._space, self.of(value), self._space)

    def _members(self, members: Sequence[tuple[tuple[Part, ...], bool]], more: tuple[Part, ...] = ()) -> Alternatives:
        """Return members in order, separated by commas, then any number of ``more``; a flag marks required members."""
        first, others = Alternatives([()]), Alternatives([()])
        if more:
            first.options.append((*more, others))
            others.options.append((b",", self._space, *more, others))
        for member, is_required in reversed(members):
            begun = Alternatives([(*member, others)])
            added = Alternatives([(b",", self._space, *member, others)])
            if not is_required:
                begun.options.append((first,))
                added.options.append((others,))
            first, others = begun, added
        return first


def _integers(schema: dict[str, Any]) -> list[tuple[Part, ...]]:
    least = max(_bound(schema, "minimum", -math.inf), _bound(schema, "exclusiveMinimum", -math.inf) + 1)
    most = min(_bound(schema, "maximum", math.inf), _bound(schema, "exclusiveMaximum", math.inf) - 1)
    positive = [(Hole(DIGITS, _digits(least)),)] if most >= 0 else []
    return [*positive, (b"-", Hole(DIGITS, _digits(-most)))] if least < 0 else [*positive]


def _digits(least: float) -> int:
    """Return the digits of the smallest nonnegative integer that is at least ``least``."""
    return len(str(math.ceil(least))) if 0 < least < math.inf else 1


def _bound(schema: dict[str, Any], name: str, default: float) -> float:
    value = schema.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else default


def _count(schema: dict[str, Any], name: str) -> int:
    value = _bound(schema, name, 0)
    return int(min(max(value, 0), MOST_REPEATED if name != "minLength" else 10**9))
