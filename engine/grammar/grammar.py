"""A grammar as a request carries it, in the form that the compiler reads."""

from __future__ import annotations

import hashlib

import msgspec

MOST_CHARS = 65_536  # of a grammar's source; the time and memory of compiling grow with it


class Thought(msgspec.Struct, frozen=True):
    """Free text before the answer: it ends with ``closing``, after which the answer begins."""

    closing: str
    opening: str = ""  # the model may write it to start a thought; "": the text begins inside the thought


class Grammar(msgspec.Struct, frozen=True):
    """The form of an answer: sources for llguidance, either JSON with grammars or Lark. The edge checks them."""

    source: str
    other_source: str = ""  # an alternative that an answer may satisfy; "": none
    thought: Thought | None = None  # None: the answer begins with the text

    @property
    def digest(self) -> str:
        """32 hexadecimal digits that identify the content in caches."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:32]


class GrammarError(Exception):
    """A grammar cannot be compiled, cannot be satisfied, or needs more work than a request is allowed.

    Args:
        reason: why.
        is_other: ``other_source`` is at fault.
    """

    def __init__(self, reason: str, *, is_other: bool = False) -> None:
        super().__init__(reason)
        self.is_other = is_other
