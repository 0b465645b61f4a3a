"""One answer of a running server, piece by piece, each piece with the source that drafted it."""

from __future__ import annotations

import codecs
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from app.chat.reattaching import ReattachingReader
from app.load.stream import AttemptError, Endpoint, Event

PART = "bytes:\\x"  # before the bytes of a token that is part of a character (docs/reference/http.md)
Piece = tuple[str, str | None]
"""Text, and the source that drafted it; None: the target itself, or unknown."""


@dataclass(slots=True)
class ChatAnswer:
    """What has come of one answer."""

    text: str = ""
    tokens: int | None = None  # None: the server has not reported them
    figures: dict[str, Any] = field(default_factory=dict)  # the server's ``metrics.speculative_decoding``
    drafted: Counter[str | None] = field(default_factory=Counter)  # tokens by source; None: drawn by the target itself
    seconds: float = 0.0  # from the question to the end, or to the failure
    lost_seconds: float = 0.0  # without a connection, until the answer continued
    failure: AttemptError | None = None  # why it ended early; None: it is whole, or was stopped here

    @property
    def forwards(self) -> int | None:
        """Forwards of decoding; None: the server does not report them."""
        steps = self.figures.get("num_spec_steps")
        return steps if isinstance(steps, int) else None


async def ask(
    session: aiohttp.ClientSession,
    endpoint: Endpoint,
    body: Mapping[str, Any],
    answer: ChatAnswer,
    show: Callable[[str, str | None], None],
    show_connection: Callable[[float | None], None],
) -> None:
    """Send a chat, fill ``answer`` as its parts come, and show each piece. A failure is stored, not raised.

    The server deletes the answer at its end, also if the caller is cancelled.

    Args:
        endpoint, show_connection: as in ``ReattachingReader``.
        show: called with text and the source that drafted it (None: the target itself, or unknown).
    """
    began, trace = time.monotonic(), TraceReader()
    answer.drafted = trace.counts

    def take(event: Event, _: float) -> None:
        added = "".join(choice.added for choice in event.choices or ())
        answer.text += added
        if event.usage is not None:
            answer.tokens = event.usage.completion_tokens
        answer.figures |= {name: value for name, value in event.speculation.items() if name != "trace"}
        for piece in trace.push(added, event.speculation.get("trace")):
            show(*piece)

    def note_connection(seconds: float | None) -> None:
        answer.lost_seconds += seconds or 0.0
        show_connection(seconds)

    reader = ReattachingReader(session, endpoint, take, note_connection)
    try:
        answer.failure = await reader.read(body)
    finally:
        answer.seconds = time.monotonic() - began
        await reader.delete()
        for piece in trace.end():
            show(*piece)


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
    """Gives every token of a trace its part of the answer's text.

    The page's reader, ``app/playground/static/js/data/trace.js``, does the same; both are tested on the same cases.

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
    if not token.startswith(PART):
        return token.encode()
    try:
        return bytes.fromhex(token.removeprefix(PART).replace("\\x", ""))
    except ValueError:
        return token.encode()
