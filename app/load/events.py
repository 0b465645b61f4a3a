"""Server-sent events out of bytes that were cut anywhere, and what an event of a stream may hold; keeps no times."""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"[DONE]"


class Text(msgspec.Struct):
    """The piece of a message that a chat chunk adds."""

    content: str | None = None
    reasoning_content: str | None = None  # vLLM's, of models that think first


class Choice(msgspec.Struct):
    """One choice of a chunk: ``delta`` in chats, ``text`` in completions."""

    delta: Text | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def added(self) -> str:
        """The text it adds."""
        if self.delta is None:
            return self.text or ""
        return (self.delta.reasoning_content or "") + (self.delta.content or "")


class Usage(msgspec.Struct):
    """Token counts of the whole answer so far."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Event(msgspec.Struct):
    """One event of a stream; what is not named here is skipped unread."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    metrics: Any = None
    error: Any = None


decode = msgspec.json.Decoder(Event).decode


class EventData:
    """Collects the ``data`` of events from bytes; lines may end with LF or CRLF, other fields are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Data of the events that are complete now, in order."""
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
