"""What an ingress and a router send each other on their channel: commands one way, events the other, many in a frame.

msgpack in the frames of ``deployments.channels.channel``; an empty list is a heartbeat, and is answered with one.
Knows no sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from deployments.metrics.reports import MetricFamily
from deployments.submission.messages import ModelCard, RequestFailure
from engine.events import StepEvent
from engine.request import Request

SUBMIT = "submit"  # role of an ingress in the handshake
BEAT_S = 2.0  # seconds between two heartbeats of an ingress
SILENT_BEATS = 5  # after so many beats without a frame the peer counts as lost


class Attachment(msgspec.Struct, frozen=True):
    """Where a router listens, the secret of its channel, and the model behind it; travels by a call of Ray, never over
    the channel."""

    address: str
    secret: bytes
    card: ModelCard | None = None  # None: any request may come, whichever model it was encoded for

    def __repr__(self) -> str:
        """Without the secret: logs and errors print their arguments."""
        return f"Attachment(address={self.address!r})"


class Submit(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """Run a request. ``number`` is the ingress's own, never used twice on a connection."""

    number: int
    request: Request


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """Stop a request: its client has gone."""

    number: int


class ReadinessQuery(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """Would a request sent now be served? ``number`` is as that of ``Submit``."""

    number: int


class MetricsReport(msgspec.Struct, frozen=True, array_like=True, tag="m"):
    """What the ingress has counted since its last report."""

    families: list[MetricFamily]


class RequestEvent(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """One event of one request, or the error that ends it."""

    number: int
    event: StepEvent | None
    failure: RequestFailure | None = None


class Readiness(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """The answer to ``ReadinessQuery``."""

    number: int
    problem: str = ""  # why a request sent now would not be served


class RouterDraining(msgspec.Struct, frozen=True, array_like=True, tag="l"):
    """The router is being replaced: new requests are for the next one, those that run may end here."""


Command = Submit | Cancel | ReadinessQuery | MetricsReport
Event = RequestEvent | Readiness | RouterDraining

_ENCODER = msgspec.msgpack.Encoder()
_COMMANDS: msgspec.msgpack.Decoder[list[Command]] = msgspec.msgpack.Decoder(list[Command])
_EVENTS: msgspec.msgpack.Decoder[list[Event]] = msgspec.msgpack.Decoder(list[Event])


def encode_message(message: Command | Event) -> msgspec.Raw:
    """One message of a frame, encoded alone: a value that cannot be encoded fails its own request and no other.

    Raises:
        EncodeError: a value has no form in msgpack, for instance an integer beyond 64 bits.
    """
    try:
        return msgspec.Raw(_ENCODER.encode(message))
    except (OverflowError, TypeError, ValueError) as error:
        raise msgspec.EncodeError(str(error)) from error


def encode(messages: Sequence[Command | Event | msgspec.Raw]) -> bytes:
    """A frame for the other side; without messages a heartbeat."""
    return _ENCODER.encode(messages)


def decode_commands(raw: bytes) -> list[Command]:
    """A frame of an ingress; raises msgspec.DecodeError when it is malformed."""
    return _COMMANDS.decode(raw)


def decode_events(raw: bytes) -> list[Event]:
    """A frame of a router; raises msgspec.DecodeError when it is malformed."""
    return _EVENTS.decode(raw)


class Heartbeat:
    """Notices a peer that has fallen silent, though its connection stands.

    Counts heartbeats, not seconds: a process that was itself held up for a minute hears what waits in its socket
    before the next beat, and must not take its own absence for the peer's.
    """

    def __init__(self, beat: float = BEAT_S) -> None:
        self._beat = beat  # seconds
        self._missed = 0

    def heard(self) -> None:
        """A frame of the peer arrived."""
        self._missed = 0

    async def beat(self) -> bool:
        """Wait for the next beat; False once ``SILENT_BEATS`` beats have passed without a frame of the peer."""
        await asyncio.sleep(self._beat)
        self._missed += 1
        return self._missed <= SILENT_BEATS
