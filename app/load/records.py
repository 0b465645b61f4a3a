"""The record of one request: when its text came, which attempts failed, how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

OK = "ok"
BROKEN, ERROR_EVENT = "broken stream", "error event"  # breaks after the answer had begun
STREAM_BREAKS = (BROKEN, ERROR_EVENT)


@dataclass(slots=True)
class Break:
    """An attempt that failed."""

    kind: str  # the word under which the report counts it
    message: str  # of the server or the socket
    at: float  # when, in seconds of the records' clock
    status: int | None = None  # HTTP status, if there was an answer
    retry_after: float | None = None  # seconds to wait that the server asked for, if any
    characters: int = 0  # length of the text by then, over all attempts
    recovered: float | None = None  # seconds until new text came or the answer was complete; None: never


@dataclass(slots=True)
class RequestRecord:
    """One request with all its attempts; times are seconds of one monotonic clock."""

    index: int  # of the request
    prompt: int  # index of its prompt
    seed: int | None  # in the body, if any
    intended: float  # the moment for which it was planned: its arrival, or when its client became free
    sent: float = 0.0  # when the first attempt began
    ended: float = 0.0  # when the answer was complete, or given up
    chunks: list[float] = field(default_factory=list)  # when each piece of text came that no earlier attempt brought
    text: str = ""  # of the answer so far
    outcome: str = ""  # ``OK``, or the kind of the last break; empty while it runs
    prompt_tokens: int | None = None  # of the server's usage; None: the server sent none
    completion_tokens: int | None = None  # likewise
    finish_reason: str | None = None
    speculation: dict[str, Any] | None = None  # the server's ``metrics.speculative_decoding``, if any
    breaks: list[Break] = field(default_factory=list)  # failed attempts; the last is final unless the outcome is ``OK``
    diverged: bool = False  # a retry did not begin with the text that had come before

    @property
    def ok(self) -> bool:
        return self.outcome == OK

    @property
    def retries(self) -> int:
        return len(self.breaks) if self.ok else max(0, len(self.breaks) - 1)

    @property
    def ttft(self) -> float | None:
        """Seconds from the intended arrival to the first text; None without text."""
        return self.chunks[0] - self.intended if self.chunks else None

    @property
    def e2e(self) -> float:
        return self.ended - self.intended

    @property
    def lateness(self) -> float:
        """Seconds by which the client itself sent too late."""
        return self.sent - self.intended

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None with fewer than two, or without usage."""
        if self.completion_tokens is None or self.completion_tokens < 2 or not self.chunks:
            return None
        return (self.ended - self.chunks[0]) / (self.completion_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Seconds between neighbouring pieces of text."""
        return [after - before for before, after in pairwise(self.chunks)]

    @property
    def tokens_per_chunk(self) -> float | None:
        """Output tokens per piece of text; None without usage or text."""
        return self.completion_tokens / len(self.chunks) if self.completion_tokens and self.chunks else None
