"""What an ingress and a router tell each other on their channel: orders one way, news the other, many in one frame.

msgpack in the frames of ``deployments.transport.channel``; an empty list is a heartbeat, and is answered with one.
Knows no sockets.
"""

from __future__ import annotations

import asyncio

import msgspec

from deployments.submission.messages import Failure, SubmitRequest
from engine.events import StepEvent

SUBMIT = "submit"  # role of an ingress in the handshake
BEAT_S = 2.0  # between two heartbeats of an ingress
SILENT_BEATS = 5  # so many without a word, and the peer counts as lost


class Attachment(msgspec.Struct, frozen=True):
    """Where a router listens, and the secret it wants to hear; travels by an authenticated call of Ray."""

    address: str
    secret: bytes

    def __repr__(self) -> str:
        """Without the secret: logs and errors print their arguments."""
        return f"Attachment(address={self.address!r})"


class Submit(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """Run a request. ``number`` is the ingress's own, never used twice on a connection."""

    number: int
    request: SubmitRequest


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """Nobody waits for this one any more."""

    number: int


class News(msgspec.Struct, frozen=True, array_like=True):
    """One event of one request, or the error that ends it."""

    number: int
    event: StepEvent | None
    failure: Failure | None = None


Order = Submit | Cancel

_ENCODER = msgspec.msgpack.Encoder()
_ORDERS: msgspec.msgpack.Decoder[list[Submit | Cancel]] = msgspec.msgpack.Decoder(list[Submit | Cancel])
_NEWS: msgspec.msgpack.Decoder[list[News]] = msgspec.msgpack.Decoder(list[News])


def encode_orders(orders: list[Order]) -> bytes:
    """A frame for a router."""
    return _ENCODER.encode(orders)


def decode_orders(raw: bytes) -> list[Order]:
    """What an ingress wants; raises msgspec.DecodeError when it is no such frame."""
    return _ORDERS.decode(raw)


def encode_news(news: list[News]) -> bytes:
    """A frame for an ingress."""
    return _ENCODER.encode(news)


def decode_news(raw: bytes) -> list[News]:
    """What a router tells; raises msgspec.DecodeError when it is no such frame."""
    return _NEWS.decode(raw)


class Silence:
    """Notices a peer that says nothing any more, though its connection stands.

    Counts heartbeats, not seconds: a process that was itself held up for a minute hears what waits in its socket
    before the next beat, and must not take its own absence for the peer's.
    """

    def __init__(self, beat: float = BEAT_S) -> None:
        self._beat = beat  # seconds
        self._missed = 0

    def broken(self) -> None:
        """The peer said something."""
        self._missed = 0

    async def beat(self) -> bool:
        """Wait for the next beat; False once the peer has been silent for too many."""
        await asyncio.sleep(self._beat)
        self._missed += 1
        return self._missed <= SILENT_BEATS
