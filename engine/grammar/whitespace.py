"""Bounds the white space between two JSON tokens by the depth of the schema.

Where white space is unbounded, a small model may write it without end until its answer is cut off.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

MOST_LEVELS = 8  # of a recursive schema, or one that admits values of any depth
WITHIN = ("anyOf", "oneOf", "allOf")
STRUCTURE = {"$ref", "const", "enum", "type", "items", "prefixItems", "properties", "patternProperties", *WITHIN}


def bounded_whitespace(schema: Any) -> str:
    """Return a pattern of nothing, a space, or a line break with an indentation of two spaces or a tab per level."""
    levels = count_levels(schema)
    return rf" ?|\n( {{0,{2 * levels}}}|\t{{0,{levels}}})"


def count_levels(schema: Any) -> int:
    """Return how deeply arrays and objects nest in a schema's instances, at most ``MOST_LEVELS``."""
    try:
        return _levels(schema, schema, {})
    except RecursionError:
        return MOST_LEVELS


def resolve_reference(reference: Any, root: Any) -> Any:
    """Return the schema at path ``reference`` (``$ref``) in ``root``, or True, which admits anything."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return True
    found = root
    for key in unquote(reference[1:]).split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isascii() and key.isdigit() and len(key) < 10 and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            return True
    return found


def _levels(schema: Any, root: Any, known: dict[str, int]) -> int:
    """Return the levels of ``schema``; ``known`` caches them by ``$ref``."""
    if not isinstance(schema, dict):
        return MOST_LEVELS if schema is True else 0
    values = [schema.get("const"), *as_list(schema.get("enum"))]
    if not STRUCTURE & schema.keys() or any(isinstance(value, dict | list) for value in values):
        return MOST_LEVELS
    reference = str(schema.get("$ref", ""))
    if reference and reference not in known:
        known[reference] = MOST_LEVELS  # meanwhile: a schema that meets it now is recursive
        known[reference] = _levels(resolve_reference(reference, root), root, known)
    levels = [known.get(reference, 0)]
    levels += [_levels(one, root, known) for name in WITHIN for one in as_list(schema.get(name))]
    levels += [_levels(one, root, known) + 1 for one in _parts(schema)]
    return min(max(levels), MOST_LEVELS)


def _parts(schema: dict[str, Any]) -> list[Any]:
    """Return the schemas of values and items; True where the schema admits any."""
    kinds = as_list(schema.get("type")) or [schema.get("type")]
    maps = [schema[name] for name in ("properties", "patternProperties") if isinstance(schema.get(name), dict)]
    values = [value for one in maps for value in one.values()]
    items = as_list(schema.get("prefixItems")) + (as_list(schema.get("items")) or [schema.get("items", False)])
    if ("object" in kinds and not values) or isinstance(schema.get("additionalProperties"), dict):
        values.append(schema.get("additionalProperties", True))
    if "array" in kinds and not {"items", "prefixItems"} & schema.keys():
        items.append(True)
    return [part for part in [*values, *items] if part is not False]


def as_list(value: Any) -> list[Any]:
    """Return ``value`` if it is a list, else an empty one."""
    return value if isinstance(value, list) else []
