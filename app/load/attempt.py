"""One attempt at a request: server-sent events become text, which is compared with that of earlier attempts; no I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from app.load.failures import BAD_EVENT, AttemptError
from app.load.records import BROKEN, ERROR_EVENT, RequestRecord

DONE = b"[DONE]"
OnChunk = Callable[[RequestRecord, str, float], None]


class ChunkDelta(msgspec.Struct):
    """The text that a chunk of a chat adds."""

    content: str | None = None
    reasoning_content: str | None = None  # vLLM's, of models that reason first


class ChunkChoice(msgspec.Struct):
    """One choice of a chunk: ``delta`` in chats, ``text`` in completions."""

    delta: ChunkDelta | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def added(self) -> str:
        """The text that the choice adds."""
        if self.delta is None:
            return self.text or ""
        return (self.delta.reasoning_content or "") + (self.delta.content or "")


class ChunkUsage(msgspec.Struct):
    """Token counts of the answer so far."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Event(msgspec.Struct):
    """One event of a stream; other fields are skipped."""

    choices: list[ChunkChoice] | None = None
    usage: ChunkUsage | None = None
    metrics: Any = None
    error: Any = None


decode = msgspec.json.Decoder(Event).decode


class EventData:
    """Collects the ``data`` of events from bytes that may be cut anywhere; lines end with LF or CRLF."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Data of the events that ``piece`` completes, in order."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        whole: list[bytes] = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and self._data:
                whole.append(b"\n".join(self._data))
                self._data.clear()
        return whole


class Attempt:
    """Reads the bytes of one answer and adds to the record the text that earlier attempts did not bring.

    Args:
        record: of the request; its text is that of earlier attempts.
        on_chunk: called with the record, the new text and the time.
    """

    def __init__(self, record: RequestRecord, on_chunk: OnChunk) -> None:
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
            AttemptError: the server sent an error event, or an event that is no chunk.
        """
        for data in self._events.feed(piece):
            if data == DONE:
                self._done = True
            elif not self._done:
                self._event(read_event(data), now)

    def check_complete(self) -> None:
        """Call at the end of the bytes.

        Raises:
            AttemptError: the answer is incomplete.
        """
        if not self._done:
            raise AttemptError(BROKEN, "the stream ended without [DONE]", retryable=True)

    def settle(self, is_complete: bool, now: float) -> None:
        """Compare the text with that of earlier attempts; the record keeps a complete text, else the longer one."""
        text, before = "".join(self._parts), self._record.text
        has_same_start = text.startswith(before) if is_complete else text[: len(before)] == before[: len(text)]
        self._record.diverged |= not has_same_start
        if is_complete:
            self._recovered(now)
        if is_complete or len(text) > len(before):
            self._record.text = text

    def _event(self, event: Event, now: float) -> None:
        if event.error is not None:
            raise AttemptError(ERROR_EVENT, error_text(event.error), retryable=True)
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


def read_event(data: bytes) -> Event:
    """The event of its data.

    Raises:
        AttemptError: it is no chunk.
    """
    try:
        return decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AttemptError(BAD_EVENT, f"{error}: {data[:100]!r}", retryable=False) from error


def error_text(error: object) -> str:
    """What an error event says."""
    return str(error.get("message", error) if isinstance(error, dict) else error)
