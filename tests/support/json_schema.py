"""Hypothesis strategies for the values that a JSON schema allows, extreme ones first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

WIDE = (-(2**63), 2**64 - 1)  # the range of MessagePack
CHARACTERS = st.characters(exclude_categories=["Cs"])
Schema = Mapping[str, Any]
Strategy = st.SearchStrategy[Any]


def values_of(schema: Schema, special: Mapping[str, Strategy] | None = None) -> Strategy:
    """Values of a schema of pydantic or msgspec; ``special`` replaces properties by name."""
    definitions, replaced = schema.get("$defs", {}), special or {}

    def of(schema: Schema) -> Strategy:
        if "$ref" in schema:
            return of(definitions[schema["$ref"].rpartition("/")[2]])
        if "anyOf" in schema:
            return st.one_of([of(choice) for choice in schema["anyOf"]])
        if "const" in schema or "enum" in schema:
            return st.sampled_from(schema.get("enum") or [schema["const"]])
        match schema["type"]:
            case "null":
                return st.none()
            case "boolean":
                return st.booleans()
            case "integer":
                low = schema.get("minimum", schema.get("exclusiveMinimum", WIDE[0] - 1) + 1)
                high = schema.get("maximum", schema.get("exclusiveMaximum", WIDE[1] + 1) - 1)
                return st.sampled_from([low, high]) | st.integers(low, min(high, low + 300)) | st.integers(low, high)
            case "number":
                return _numbers(schema)
            case "string":
                most = min(schema.get("maxLength", 20), 300)
                return st.text(CHARACTERS, max_size=min(most, 20)) | st.just("\U0010ffff" * most)
            case "array" if "prefixItems" in schema:
                return st.tuples(*map(of, schema["prefixItems"])).map(list)
            case "array":
                most = min(schema.get("maxItems", 5), 5)
                return st.lists(of(schema["items"]), min_size=schema.get("minItems", 0), max_size=most)
        if "properties" not in schema:
            return st.dictionaries(st.text(max_size=5), of(schema["additionalProperties"]), max_size=4)
        fields = {name: replaced[name] if name in replaced else of(one) for name, one in schema["properties"].items()}
        required = {name: fields.pop(name) for name in schema.get("required", [])}
        return st.fixed_dictionaries(required, optional=fields)

    return of(schema)


def _numbers(schema: Schema) -> Strategy:
    low, high = "exclusiveMinimum" in schema, "exclusiveMaximum" in schema
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    infinite = False if least is None else None
    return st.floats(least, most, exclude_min=low, exclude_max=high, allow_nan=False, allow_infinity=infinite)
