"""What an answer is that has to call a tool: ``tool_choice`` required or by name promises what masks keep."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.api.tools.families import Family

# As models were taught to write JSON, and without choice: a small one writes white space for ever where it may.
SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
ANY_OBJECT: dict[str, Any] = {"type": "object"}


def call_schema(family: Family, name: str, parameters: dict[str, Any] | None) -> dict[str, Any]:
    """JSON schema of one call as a family writes it: the tool's name, then its arguments."""
    properties = {"name": {"const": name}, family.arguments: parameters or ANY_OBJECT}
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
        "x-guidance": SPACING,
    }


def call_grammar(
    family: Family,
    functions: Sequence[tuple[str, dict[str, Any] | None]],
    *,
    is_parallel: bool,
    special: Mapping[str, int] | None = None,
    close: str = "",
) -> str:
    """The text of an answer that calls at least one of some tools, as a grammar in llguidance's Lark dialect.

    Args:
        family: how the model writes calls.
        functions: names and JSON schemas of arguments; None: any object.
        is_parallel: more than one call is allowed.
        special: token ids of marks that are special tokens, which no text stands for.
        close: mark that ends what was open before the answer; "": nothing was.

    Raises:
        ValueError: there is no function.
    """
    if not functions:
        raise ValueError("a grammar of calls needs a function")
    rules = [f"call_{i}: %json {json.dumps(call_schema(family, *one))}" for i, one in enumerate(functions)]
    calls = " | ".join(f"call_{i}" for i in range(len(functions)))
    start = _answer(family, is_parallel, special or {})
    if close:
        start = f'{_mark(close, special or {})} "\\n\\n" {start}'
    return "\n".join([f"start: {start}", f"call: {calls}", *rules, ""])


def _mark(text: str, special: Mapping[str, int]) -> str:
    return f"<[{special[text]}]>" if text in special else json.dumps(text)


def _answer(family: Family, is_parallel: bool, special: Mapping[str, int]) -> str:
    def mark(text: str) -> str:
        return _mark(text, special)

    if family.is_named:  # its list form, which all of the family's parsers read
        more = ' (", " call)*' if is_parallel else ""
        return f'{mark(family.opens[0])} "[" call{more} "]"'
    if family.is_bare:
        more = ' ("; " call)*' if is_parallel else ""
        return f"call{more}"
    block = f'{mark(family.opens[0])} "\\n" call "\\n" {mark(family.close)}'
    more = f' ("\\n" {block})*' if is_parallel else ""
    return f"{block}{more}"
