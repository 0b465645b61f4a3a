"""Values that a JSON schema allows, extreme ones first of all, as strategies of hypothesis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

WIDE = (-(2**63), 2**64 - 1)  # what MessagePack can write
Strategy = st.SearchStrategy[Any]


def values_of(schema: Mapping[str, Any], special: Mapping[str, Strategy] | None = None) -> Strategy:
    """Values of a schema as pydantic and msgspec write them.

    Args:
        schema: with its ``$defs``.
        special: properties, by name, whose schema does not say what they may be.
    """
    return _Builder(schema.get("$defs", {}), special or {}).of(schema)


class _Builder:
    def __init__(self, definitions: Mapping[str, Any], special: Mapping[str, Strategy]) -> None:
        self._definitions = definitions
        self._special = special

    def of(self, schema: Mapping[str, Any]) -> Strategy:
        if "$ref" in schema:
            return self.of(self._definitions[schema["$ref"].rpartition("/")[2]])
        if "anyOf" in schema:
            return st.one_of([self.of(choice) for choice in schema["anyOf"]])
        if "const" in schema or "enum" in schema:
            return st.sampled_from(schema.get("enum") or [schema["const"]])
        kinds: dict[str, Any] = {
            "null": lambda _: st.none(),
            "boolean": lambda _: st.booleans(),
            "integer": _integers,
            "number": _numbers,
            "string": _strings,
            "array": self._arrays,
            "object": self._objects,
        }
        strategy: Strategy = kinds[schema["type"]](schema)
        return strategy

    def _arrays(self, schema: Mapping[str, Any]) -> Strategy:
        if "prefixItems" in schema:
            return st.tuples(*map(self.of, schema["prefixItems"])).map(list)
        most = min(schema.get("maxItems", 5), 5)
        return st.lists(self.of(schema["items"]), min_size=schema.get("minItems", 0), max_size=most)

    def _objects(self, schema: Mapping[str, Any]) -> Strategy:
        if "properties" not in schema:
            return st.dictionaries(st.text(max_size=5), self.of(schema["additionalProperties"]), max_size=4)
        fields = {
            name: self._special[name] if name in self._special else self.of(field)
            for name, field in schema["properties"].items()
        }
        needed = schema.get("required", [])
        return st.fixed_dictionaries(
            {name: fields[name] for name in needed},
            optional={name: fields[name] for name in fields if name not in needed},
        )


def _integers(schema: Mapping[str, Any]) -> Strategy:
    low = schema.get("minimum", schema.get("exclusiveMinimum", WIDE[0] - 1) + 1)
    high = schema.get("maximum", schema.get("exclusiveMaximum", WIDE[1] + 1) - 1)
    return st.sampled_from([low, high]) | st.integers(low, min(high, low + 300)) | st.integers(low, high)


def _numbers(schema: Mapping[str, Any]) -> Strategy:
    return st.floats(
        schema.get("minimum", schema.get("exclusiveMinimum")),
        schema.get("maximum", schema.get("exclusiveMaximum")),
        exclude_min="exclusiveMinimum" in schema,
        exclude_max="exclusiveMaximum" in schema,
        allow_nan=False,
        allow_infinity=False if "minimum" not in schema and "exclusiveMinimum" not in schema else None,
    )


def _strings(schema: Mapping[str, Any]) -> Strategy:
    characters = st.characters(exclude_categories=["Cs"])
    most = min(schema.get("maxLength", 20), 300)
    return (
        st.text(characters, max_size=most)
        if most == 20
        else st.text(characters, max_size=20) | st.just("\U0010ffff" * most)
    )
