"""One attempt at a request: its text as it comes, held against what earlier attempts brought; no sockets."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from app.load.events import DONE, Event, EventData, decode
from app.load.failures import BAD_EVENT, Failure
from app.load.records import BROKEN, ERROR_EVENT, Record

OnChunk = Callable[[Record, str, float], None]


class Attempt:
    """Takes the bytes of one answer and writes into the record what is new in it.

    Args:
        record: of the request; its text is what earlier attempts brought.
        on_chunk: called with the record, the piece and the time when text beyond that came.
    """

    def __init__(self, record: Record, on_chunk: OnChunk) -> None:
        self._record = record
        self._on_chunk = on_chunk
        self._before = len(record.text)
        self._events = EventData()
        self._parts: list[str] = []
        self._length = 0
        self._done = False

    def take(self, piece: bytes, now: float) -> None:
        """Read bytes that came at ``now``.

        Raises:
            Failure: the server says that it failed, or what it sent is no chunk.
        """
        for data in self._events.feed(piece):
            if data == DONE:
                self._done = True
            elif not self._done:
                self._event(_read(data), now)

    def check_complete(self) -> None:
        """At the end of the bytes.

        Raises:
            Failure: the answer was not.
        """
        if not self._done:
            raise Failure(BROKEN, "the stream ended without [DONE]", retryable=True)

    def settle(self, is_complete: bool, now: float) -> None:
        """Hold the text against that of earlier attempts and keep it: a complete one, else the longer."""
        text, before = "".join(self._parts), self._record.text
        has_begun_alike = text.startswith(before) if is_complete else text[: len(before)] == before[: len(text)]
        self._record.diverged |= not has_begun_alike
        if is_complete:
            self._recovered(now)
        if is_complete or len(text) > len(before):
            self._record.text = text

    def _event(self, event: Event, now: float) -> None:
        if event.error is not None:
            raise Failure(ERROR_EVENT, _message(event.error), retryable=True)
        record = self._record
        for choice in event.choices or ():
            if added := choice.added:
                self._text(added, now)
            record.finish_reason = choice.finish_reason or record.finish_reason
        if event.usage is not None:
            record.prompt_tokens = event.usage.prompt_tokens
            record.completion_tokens = event.usage.completion_tokens
        if isinstance(event.metrics, dict):
            record.speculation = event.metrics.get("speculative_decoding", record.speculation)

    def _text(self, added: str, now: float) -> None:
        self._parts.append(added)
        self._length += len(added)
        if self._length > self._before:
            self._recovered(now)
            self._record.chunks.append(now)
            self._on_chunk(self._record, added[-(self._length - self._before) :], now)

    def _recovered(self, now: float) -> None:
        for found in self._record.breaks:
            if found.recovered is None:
                found.recovered = now - found.at


def _read(data: bytes) -> Event:
    try:
        return decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Failure(BAD_EVENT, f"{error}: {data[:100]!r}", retryable=False) from error


def _message(error: object) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)
