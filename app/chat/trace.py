"""The terminal's reader of traces: from a trace and the text of an answer to pieces of text, each with its source.

The page's reader, ``app/playground/static/js/data/trace.js``, does the same; both are tested on the same cases.
"""

from __future__ import annotations

import codecs
from collections import Counter
from typing import Any

import msgspec

PART = "bytes:\\x"  # before the bytes of a token that is part of a character (docs/http.md)
Piece = tuple[str, str | None]
"""Text, and the source that drafted it; None: the target itself, or unknown."""


class TracedToken(msgspec.Struct):
    """A token of a traced step; ``node``: its place among the step's nodes, None: drawn by the target itself."""

    text: str = ""
    node: int | None = None


class TracedNode(msgspec.Struct):
    """A drafted node; the first of its sources is the one that counts."""

    sources: list[str] = []


class ReceivedTraceStep(msgspec.Struct):
    """The fields of a step that are read; others are skipped."""

    tokens: list[TracedToken] = []
    nodes: list[TracedNode] = []


class TraceReader:
    """Gives every token its part of the answer's text.

    The text is the truth. The text of tokens differs from it where a character is made of several tokens (the last of
    them gets it), where a token has no text, and at a space that the answer does not begin with. Text that comes before
    any token is passed on at once: the server sends no trace.
    """

    def __init__(self) -> None:
        self.counts: Counter[str | None] = Counter()  # all tokens of the trace, by source
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""  # that no token has yet
        self._waiting: list[Piece] = []  # text of tokens that have not been found in the answer's yet
        self._has_begun = False

    def push(self, text: str, trace: Any = None) -> list[Piece]:
        """Take the text and the trace of an event; returns the pieces that are known now."""
        self._text += text
        for token, source in traced_tokens(trace):
            self.counts[source] += 1
            self._waiting.append((self._decoder.decode(_bytes(token)), source))
        if not self.counts:
            return self.end()
        found: list[Piece] = []
        while self._waiting:
            token = self._next()
            if self._text.startswith(token):
                self._give(found, 1, len(token))
            elif not self._skip(found, token):
                break
        return [piece for piece in found if piece[0]]

    def end(self) -> list[Piece]:
        """Return the rest of the text at the end; it belongs to the last token that waits, if there is one."""
        source = self._waiting[-1][1] if self._waiting else None
        rest, self._text = self._text, ""
        self._waiting.clear()
        return [(rest, source)] if rest else []

    def _next(self) -> str:
        """Text of the first token that waits, without a space that the answer does not begin with."""
        token = self._waiting[0][0]
        bare = token.lstrip()
        is_bare = not self._has_begun and bare and not self._text.startswith(token) and self._text.startswith(bare)
        return bare if is_bare else token

    def _skip(self, found: list[Piece], token: str) -> bool:
        """Skip tokens without text, up to one with text; False: more text must come first."""
        if token.startswith(self._text):
            return False
        for i, (later, _) in enumerate(self._waiting[1:], start=1):
            if later and (at := self._text.find(later)) >= 0:
                self._give(found, i, at)
                return True
        return False

    def _give(self, found: list[Piece], n: int, length: int) -> None:
        """Give ``length`` characters to the last of the first ``n`` tokens."""
        found.append((self._text[:length], self._waiting[n - 1][1]))
        self._text = self._text[length:]
        self._has_begun |= length > 0
        del self._waiting[:n]


def traced_tokens(trace: Any) -> list[Piece]:
    """Text and source of each token of a trace; none if it has another form, as of another server."""
    try:
        steps = msgspec.convert(trace, list[ReceivedTraceStep])
    except msgspec.ValidationError:
        return []
    return [(token.text, _source(token, step.nodes)) for step in steps for token in step.tokens]


def _source(token: TracedToken, nodes: list[TracedNode]) -> str | None:
    is_drafted = token.node is not None and 0 <= token.node < len(nodes)
    sources = nodes[token.node or 0].sources if is_drafted else []
    return sources[0] if sources else None


def _bytes(token: str) -> bytes:
    """The bytes of a token, by its text."""
    if not token.startswith(PART):
        return token.encode()
    try:
        return bytes.fromhex(token.removeprefix(PART).replace("\\x", ""))
    except ValueError:
        return token.encode()
