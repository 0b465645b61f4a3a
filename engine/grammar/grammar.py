"""A grammar as a request carries it, in the compiler's own form."""

from __future__ import annotations

import hashlib

import msgspec

MOST_CHARS = 65_536  # of a grammar's source; compiling takes time and memory in proportion


class Thought(msgspec.Struct, frozen=True):
    """Free text before the answer: it ends with ``closing``, after which the answer begins."""

    closing: str
    opening: str = ""  # the model may write it first, and then thinks; "": the text begins inside the thought


class Grammar(msgspec.Struct, frozen=True):
    """The form of an answer. The sources are llguidance's: JSON that holds grammars, or Lark. The edge checks them."""

    source: str
    other_source: str = ""  # an answer may satisfy this one instead; "": it may not
    thought: Thought | None = None  # None: the answer begins with the text

    @property
    def digest(self) -> str:
        """32 hexadecimal digits that identify the content in caches."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:32]


class GrammarError(Exception):
    """A grammar cannot be compiled, cannot be satisfied, or needs more work than one request may take.

    Args:
        reason: why.
        is_other: it is ``other_source`` that fails.
    """

    def __init__(self, reason: str, *, is_other: bool = False) -> None:
        super().__init__(reason)
        self.is_other = is_other
