"""Messages between an ingress and a router: the ingress sends commands, the router sends events.

A frame of ``deployments.channels.channel`` holds a msgpack list of messages. An empty list is a heartbeat; the router
answers it with one. Knows no sockets.
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
SILENT_BEATS = 5  # beats without a frame after which the peer counts as lost


class Attachment(msgspec.Struct, frozen=True):
    """Address and secret of a router's server, and its model; sent by a call of Ray, never over the channel."""

    address: str
    secret: bytes
    card: ModelCard | None = None  # None: the router accepts requests that were encoded for any model

    def __repr__(self) -> str:
        """Leaves out the secret: logs and errors print their arguments."""
        return f"Attachment(address={self.address!r})"


class AnswerReference(msgspec.Struct, frozen=True, array_like=True):
    """One choice of an answer that the answer keeper has, from a token on."""

    id: str  # of the answer
    tenant: str  # of the reader; another tenant's answers do not exist for it
    choice: int  # 0 for the first of the answer's requests
    after: int  # tokens that the reader has already; more than there are: it waits for the end alone
    is_reader: bool = True  # whether a stream continues because of this reader
    request_id: str = ""  # of the reader's request, for log lines


class Submit(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """Run a request. The ingress chooses ``number``, and never uses one twice on a connection."""

    number: int
    request: Request


class Follow(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """Send the events of an answer; ``number`` as in ``Submit``."""

    number: int
    request: AnswerReference


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """Cancel a request: its client has disconnected."""

    number: int


class ReadinessQuery(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """Ask whether the router would serve a request sent now; ``number`` as in ``Submit``."""

    number: int


class MetricsReport(msgspec.Struct, frozen=True, array_like=True, tag="m"):
    """Growth of the ingress's metrics since its last report."""

    families: list[MetricFamily]


class RequestEvent(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """One event of one request, or the error that ends it; with neither, more follows to the next submission."""

    number: int
    event: StepEvent | None
    failure: RequestFailure | None = None


class Readiness(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """The answer to ``ReadinessQuery``."""

    number: int
    problem: str = ""  # why a request sent now would not be served


class RouterDraining(msgspec.Struct, frozen=True, array_like=True, tag="l"):
    """The router is being replaced: new requests go to the next one, running ones may end here."""


Command = Submit | Follow | Cancel | ReadinessQuery | MetricsReport
Event = RequestEvent | Readiness | RouterDraining

_ENCODER = msgspec.msgpack.Encoder()
_COMMANDS: msgspec.msgpack.Decoder[list[Command]] = msgspec.msgpack.Decoder(list[Command])
_EVENTS: msgspec.msgpack.Decoder[list[Event]] = msgspec.msgpack.Decoder(list[Event])


def encode_message(message: Command | Event) -> msgspec.Raw:
    """Encode one message of a frame on its own, so that a value that cannot be encoded fails no other request.

    Raises:
        EncodeError: msgpack cannot represent a value, for instance an integer beyond 64 bits.
    """
    try:
        return msgspec.Raw(_ENCODER.encode(message))
    except (OverflowError, TypeError, ValueError) as error:
        raise msgspec.EncodeError(str(error)) from error


def encode(messages: Sequence[Command | Event | msgspec.Raw]) -> bytes:
    """Encode a frame; without messages it is a heartbeat."""
    return _ENCODER.encode(messages)


def decode_commands(raw: bytes) -> list[Command]:
    """Decode a frame of an ingress; raises msgspec.DecodeError when it is malformed."""
    return _COMMANDS.decode(raw)


def decode_events(raw: bytes) -> list[Event]:
    """Decode a frame of a router; raises msgspec.DecodeError when it is malformed."""
    return _EVENTS.decode(raw)


class Heartbeat:
    """Detects a silent peer on an open connection.

    Counts beats, not seconds. A process that was itself held up for a minute reads the frames in its socket before the
    next beat, and does not mistake its own pause for the peer's.
    """

    def __init__(self, beat: float = BEAT_S) -> None:
        self._beat = beat  # seconds
        self._missed = 0

    def heard(self) -> None:
        """Note that a frame of the peer has arrived."""
        self._missed = 0

    async def beat(self) -> bool:
        """Wait for the next beat; False once ``SILENT_BEATS`` beats have passed without a frame of the peer."""
        await asyncio.sleep(self._beat)
        self._missed += 1
        return self._missed <= SILENT_BEATS
