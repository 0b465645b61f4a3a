"""One answer of a running server, piece by piece, each piece with the source that drafted it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from app.load.attempt import DONE, EventData, error_text, read_event
from app.load.client import ERROR_BYTES, Endpoint
from app.load.failures import AttemptError, of_exception, of_status
from app.load.records import BROKEN, ERROR_EVENT

PART = "bytes:\\x"  # before the bytes of a token that is part of a character (docs/http.md)

Piece = Callable[[str, str | None], None]
"""Is told text and the source that drafted it; None: the target itself, or unknown."""


@dataclass(slots=True)
class ChatAnswer:
    """What came of one question.

    Attributes:
        text: so far.
        tokens: of the answer; None: the server has not said.
        figures: the server's ``metrics.speculative_decoding``; empty if there are none.
        drafted: tokens by the source that drafted them, as a trace tells it; None: drawn by the target itself.
        seconds: from the question to the end, or to the failure.
        failure: why it ended early; None: it is whole, or was stopped here.
    """

    text: str = ""
    tokens: int | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    drafted: Counter[str | None] = field(default_factory=Counter)
    seconds: float = 0.0
    failure: AttemptError | None = None

    @property
    def forwards(self) -> int | None:
        """Forwards of decoding; None: the server does not say."""
        steps = self.figures.get("num_spec_steps")
        return steps if isinstance(steps, int) else None


class TracedToken(msgspec.Struct):
    """A token of a traced step; ``node``: its place among the step's nodes, None: drawn by the target itself."""

    text: str = ""
    node: int | None = None


class TracedNode(msgspec.Struct):
    """A drafted node; the first of its sources is the one that counts."""

    sources: list[str] = []


class ReceivedTraceStep(msgspec.Struct):
    """What is read of a step (docs/http.md); other fields are skipped."""

    tokens: list[TracedToken] = []
    nodes: list[TracedNode] = []


class TokenSources:
    """Gives the text of an answer, as it comes, the sources that a trace tells of its tokens.

    A character may be cut into several tokens, and the text of special tokens is left out: what fits no token has no
    source, and tokens that fit nowhere are passed over.
    """

    def __init__(self) -> None:
        self._tokens: list[tuple[str, str | None]] = []
        self.counts: Counter[str | None] = Counter()  # of all tokens that were told

    def told(self, trace: Any) -> None:
        """Take up the steps of a trace; one of another form, as of another server, tells nothing."""
        try:
            steps = msgspec.convert(trace, list[ReceivedTraceStep])
        except msgspec.ValidationError:
            return
        for step in steps:
            for token in step.tokens:
                node = -1 if token.node is None else token.node
                sources = step.nodes[node].sources if 0 <= node < len(step.nodes) else []
                source = sources[0] if sources else None
                self._tokens.append((token.text, source))
                self.counts[source] += 1

    def of(self, text: str, show: Piece) -> None:
        """Show ``text`` in pieces, one a token where they fit."""
        while text:
            while self._tokens and self._tokens[0][0].startswith(PART):
                self._tokens.pop(0)
            token, source = self._tokens[0] if self._tokens else ("", None)
            if token and text.startswith(token):
                self._tokens.pop(0)
                show(token, source)
                text = text[len(token) :]
            elif token and token.startswith(text):
                self._tokens[0] = (token[len(text) :], source)
                show(text, source)
                text = ""
            else:  # up to the first token that has its text here
                found = ((i, text.find(token)) for i, (token, _) in enumerate(self._tokens) if token)
                i, place = next((one for one in found if one[1] >= 0), (0, len(text)))
                del self._tokens[:i]
                if place:
                    show(text[:place], None)
                text = text[place:]


async def ask(
    session: aiohttp.ClientSession, endpoint: Endpoint, body: Mapping[str, Any], answer: ChatAnswer, show: Piece
) -> None:
    """Send a chat, fill ``answer`` as its parts come, and show each. Failures are stored in ``answer``, not raised."""
    began = time.monotonic()
    has_begun = False
    try:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=endpoint.timeout, sock_read=endpoint.timeout)
        async with session.post(endpoint.url, json=body, headers=endpoint.headers, timeout=timeout) as response:
            if response.status != 200:
                raise of_status(response.status, response.headers, await response.content.read(ERROR_BYTES))
            has_begun = True
            await _read(response, answer, show)
    except AttemptError as failure:
        answer.failure = failure
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        answer.failure = of_exception(error, has_begun)
    finally:
        answer.seconds = time.monotonic() - began


async def _read(response: aiohttp.ClientResponse, answer: ChatAnswer, show: Piece) -> None:
    events, sources = EventData(), TokenSources()
    answer.drafted = sources.counts
    async for piece in response.content.iter_any():
        for data in events.feed(piece):
            if data == DONE:
                return
            _take(data, answer, sources, show)
    raise AttemptError(BROKEN, "the stream ended without [DONE]", retryable=True)


def _take(data: bytes, answer: ChatAnswer, sources: TokenSources, show: Piece) -> None:
    event = read_event(data)
    if event.error is not None:
        raise AttemptError(ERROR_EVENT, error_text(event.error), retryable=True)
    if event.usage is not None:
        answer.tokens = event.usage.completion_tokens
    figures = event.metrics.get("speculative_decoding") if isinstance(event.metrics, dict) else None
    if isinstance(figures, dict):
        sources.told(figures.get("trace"))
        answer.figures |= {name: value for name, value in figures.items() if name != "trace"}
    for choice in event.choices or ():
        answer.text += choice.added
        sources.of(choice.added, show)
