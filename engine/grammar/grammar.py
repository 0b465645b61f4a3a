"""A grammar as a request carries it: what the text has to be, in the compiler's own form."""

from __future__ import annotations

import hashlib

import msgspec

MOST_CHARS = 65_536  # of a grammar's source; compiling takes time and memory in proportion


class Grammar(msgspec.Struct, frozen=True):
    """``source`` is llguidance's: JSON that holds grammars, or Lark. The edge has checked it; it travels along."""

    source: str

    @property
    def digest(self) -> str:
        """Of the content, 32 hexadecimal digits: what caches know it by."""
        return hashlib.sha256(self.source.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class GrammarError(Exception):
    """A grammar cannot be compiled, cannot be satisfied, or needs more work than one request may take."""
