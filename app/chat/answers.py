"""One answer of a running server, piece by piece, each piece with the source that drafted it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from app.chat.trace import TraceReader
from app.load.stream import AttemptError, Endpoint, Event, stream


@dataclass(slots=True)
class ChatAnswer:
    """What has come of one answer."""

    text: str = ""
    tokens: int | None = None  # None: the server has not reported them
    figures: dict[str, Any] = field(default_factory=dict)  # the server's ``metrics.speculative_decoding``
    drafted: Counter[str | None] = field(default_factory=Counter)  # tokens by source; None: drawn by the target itself
    seconds: float = 0.0  # from the question to the end, or to the failure
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
) -> None:
    """Send a chat, fill ``answer`` as its parts come, and show each piece. A failure is stored, not raised.

    Args:
        endpoint: its timeout is that of the connection, and of each wait for a part of the answer.
        show: called with text and the source that drafted it (None: the target itself, or unknown).
    """
    began, reader = time.monotonic(), TraceReader()
    answer.drafted = reader.counts
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=endpoint.timeout, sock_read=endpoint.timeout)

    def take(event: Event, _: float) -> None:
        added = "".join(choice.added for choice in event.choices or ())
        answer.text += added
        if event.usage is not None:
            answer.tokens = event.usage.completion_tokens
        answer.figures |= {name: value for name, value in event.speculation.items() if name != "trace"}
        for piece in reader.push(added, event.speculation.get("trace")):
            show(*piece)

    try:
        answer.failure = await stream(session, endpoint, body, timeout, take)
    finally:
        for piece in reader.end():
            show(*piece)
        answer.seconds = time.monotonic() - began
