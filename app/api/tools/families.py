"""How the families of models write calls of tools, and which family a model belongs to."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass

MISTRAL_ID = 9  # letters and digits: its templates refuse other ids


def _usual_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _mistral_id() -> str:
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(MISTRAL_ID))


@dataclass(frozen=True)
class CallFamily:
    """A way to write calls as JSON.

    A call is ``{"name": .., ARGUMENTS: {..}}`` between ``opens`` and ``close``; several stand side by side or in a
    list.
    """

    name: str
    opens: tuple[str, ...]  # marks that begin a block of calls
    close: str = "\0"  # the mark that ends it; by default none, as no text has this one
    arguments: str = "arguments"  # key of the arguments, as the model was taught it
    is_bare: bool = False  # an answer may be a call from its first character on, without a mark
    is_named: bool = False  # ``name[ARGS]{..}`` is a call too
    inner: tuple[str, ...] = ()  # further marks that calls may hold
    new_id: Callable[[], str] = _usual_id

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks that must be in the text to be read, also where they are special tokens."""
        return (*self.opens, *self.inner)


FAMILIES = {
    family.name: family
    for family in (
        CallFamily("hermes", ("<tool_call>",), "</tool_call>", inner=("</tool_call>",)),
        CallFamily("llama3", ("<|python_tag|>",), arguments="parameters", is_bare=True),
        CallFamily("mistral", ("[TOOL_CALLS]",), is_named=True, inner=("[ARGS]", "[CALL_ID]"), new_id=_mistral_id),
    )
}
# What only the templates of a family have; the first that fits counts.
SIGNS = (
    ("mistral", re.compile(r"\[TOOL_CALLS\]|\[AVAILABLE_TOOLS\]")),
    ("", re.compile(r"<function=|<\|tool▁call|<\|channel\|>")),  # not JSON, and other families
    ("hermes", re.compile(r"<tool_call>")),
    ("llama3", re.compile(r"<\|python_tag\|>|ipython")),
)


def family_of(template: str) -> CallFamily | None:
    """The family of a chat template; None if it is of none that is known."""
    for name, sign in SIGNS:
        if sign.search(template):
            return FAMILIES.get(name)
    return None
