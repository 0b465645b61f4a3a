"""How families of models write reasoning and calls of tools, and the family of a chat template."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

OPEN, CLOSE = "<think>", "</think>"  # around the reasoning, in all families


@dataclass(frozen=True)
class CallFamily:
    """A way to write calls as JSON.

    A call is ``{"name": .., ARGUMENTS: {..}}`` after ``opens``; several follow each other or are in a list.
    """

    name: str
    opens: str  # the mark that begins a block of calls
    close: str = ""  # the mark that ends it; "": none
    arguments: str = "arguments"  # key of the arguments
    is_bare: bool = False  # an answer may be a call from its first character on, without a mark
    is_named: bool = False  # ``name[ARGS]{..}`` is also a call
    inner: tuple[str, ...] = ()  # further marks

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks that the text must show, even if they are special tokens."""
        return (*filter(None, (self.opens, self.close)), *self.inner)

    def call_id(self, salt: str, index: int) -> str:
        """The id of an answer's call: the same for the same ``salt``, so that an answer can be written again.

        Mistral's templates refuse others than 9 letters and digits.
        """
        digest = hashlib.blake2b(f"{salt}/{index}".encode(), digest_size=12).hexdigest()
        return digest[:9] if self.is_named else f"call_{digest}"


FAMILIES = {
    family.name: family
    for family in (
        CallFamily("hermes", "<tool_call>", "</tool_call>"),
        CallFamily("llama3", "<|python_tag|>", arguments="parameters", is_bare=True),
        CallFamily("mistral", "[TOOL_CALLS]", is_named=True, inner=("[ARGS]", "[CALL_ID]")),
    )
}
# Texts that only the templates of a family have; the first match counts.
SIGNS = (
    ("mistral", re.compile(r"\[TOOL_CALLS\]|\[AVAILABLE_TOOLS\]")),
    ("", re.compile(r"<function=|<\|tool▁call|<\|channel\|>")),  # unsupported families, and calls that are not JSON
    ("hermes", re.compile(r"<tool_call>")),
    ("llama3", re.compile(r"<\|python_tag\|>|ipython")),
)


def family_of(template: str) -> CallFamily | None:
    """The family of a chat template; None if it is unknown."""
    for name, sign in SIGNS:
        if sign.search(template):
            return FAMILIES.get(name)
    return None
