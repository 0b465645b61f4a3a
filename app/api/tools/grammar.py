"""Grammars of answers that may or must call tools, with arguments that fit their schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.api.tools.families import CallFamily

# The spacing that models were trained on, without choice: a small model may write white space forever.
SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
ANY_OBJECT: dict[str, Any] = {"type": "object"}
ANYTHING = "/(?s:.*)/"
ROOT = "json-schema:///arguments"  # makes a tool's parameters a document: ``$ref`` within points into them

Function = tuple[str, dict[str, Any] | None]  # name, and JSON schema of the arguments; None: any object


@dataclass(frozen=True)
class CallGrammars:
    """Answers that call tools, as grammars in llguidance's Lark dialect.

    Args:
        family: how the model writes calls.
        functions: those that can be called.
        is_parallel: more than one call is allowed.
        special: token ids of the marks that are special tokens, which llguidance knows only by id.
    """

    family: CallFamily
    functions: Sequence[Function]
    is_parallel: bool
    special: Mapping[str, int] = field(default_factory=dict)

    def forced(self) -> str:
        """At least one call, and nothing else."""
        opens = "" if self.family.is_bare else f"{self._mark(self.family.opens)} "
        return self._rules(f"{opens}{self._calls}")

    def allowed(self) -> str:
        """Any text, or a text and calls after it. Text that continues as text does not begin a call."""
        opens, starts, rules = self.family.opens, [], []
        excluded = [f"(?s:.*){re.escape(opens)}(?s:.*)"]  # a parser takes it for the mark, special token or not
        if self.family.is_bare:  # from its first character on
            names = "|".join(re.escape(name) for name, _ in self.functions)
            excluded.append(rf'\s*\{{\s*"name"\s*:\s*"(?:(?:{names})"|[^"]*\\)(?s:.*)')
            starts.append(f"({' | '.join(f'bare_{i}' for i in range(len(self.functions)))}){self._more}")
            rules += [rule for i, one in enumerate(self.functions) for rule in self._bare(i, *one)]
        # One terminal for all that precedes the call: once complete, it cannot be another text.
        is_special = opens in self.special
        rules.append(f"lead: TEXT {self._mark(opens)}" if is_special else f"lead[suffix={json.dumps(opens)}]: TEXT")
        starts.append(f"lead {self._calls}")
        rules.append(f"TEXT: {' & '.join([ANYTHING, *(f'~/{one}/' for one in excluded)])}")
        return self._rules(" | ".join(["TEXT", *starts]), *rules)

    @property
    def _more(self) -> str:
        if not self.is_parallel:
            return ""
        if self.family.is_named:
            return ' (", " call)*'
        return ' ("; " call)*' if self.family.is_bare else f' ("\\n" {self._mark(self.family.opens)} {self._block})*'

    @property
    def _block(self) -> str:
        return f'"\\n" call "\\n" {self._mark(self.family.close)}'

    @property
    def _calls(self) -> str:
        if self.family.is_named:  # its list form, which all parsers of the family read
            return f'"[" call{self._more} "]"'
        return f"call{self._more}" if self.family.is_bare else f"{self._block}{self._more}"

    def _mark(self, text: str) -> str:
        return f"<[{self.special[text]}]>" if text in self.special else json.dumps(text)

    def _bare(self, i: int, name: str, parameters: dict[str, Any] | None) -> list[str]:
        """Rules of a call without a mark; its beginning is one terminal, so that it cannot be text."""
        head = f'"name": "{re.escape(name)}", "{self.family.arguments}": '
        return [
            f'bare_{i}: head_{i} arguments_{i} "}}"',
            rf"head_{i}[lazy]: /\s*\{{{head}/",
            f"arguments_{i}: %json {json.dumps((parameters or ANY_OBJECT) | {'x-guidance': SPACING})}",
        ]

    def _rules(self, start: str, *more: str) -> str:
        rules = [
            f"call_{i}: %json {json.dumps(call_schema(self.family, *one))}" for i, one in enumerate(self.functions)
        ]
        calls = " | ".join(f"call_{i}" for i in range(len(self.functions)))
        return "\n".join([f"start: {start}", f"call: {calls}", *rules, *more, ""])


def call_schema(family: CallFamily, name: str, parameters: dict[str, Any] | None) -> dict[str, Any]:
    """JSON schema of one call as a family writes it: the tool's name, then its arguments."""
    arguments = dict(parameters or ANY_OBJECT)
    arguments.pop("$schema", None)  # before 2019-09, ``$id`` has no effect next to ``$ref``
    if arguments.get("$id") in (None, "", "#"):
        arguments["$id"] = ROOT
    properties = {"name": {"const": name}, family.arguments: arguments}
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
        "x-guidance": SPACING,
    }
