"""What crosses processes besides steps: requests on their way in, and where to find a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from engine.events import StepEvent
from engine.sampling.params import SamplingParams
from engine.target import TargetInfo


class SubmitRequest(msgspec.Struct, frozen=True):
    """One choice, from an ingress to the router."""

    request_id: str
    prompt: list[int]
    params: SamplingParams
    method: str | None = None  # None: the router's default
    max_nodes: int | None = None
    priority: int = 0  # lower goes first
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a pipeline listens."""

    first: str  # address of the first stage: steps go in here
    last: str  # address of the last stage: results come out here
    secret: bytes
    info: TargetInfo


_EVENT = msgspec.msgpack.Decoder(StepEvent)
_REQUEST = msgspec.msgpack.Decoder(SubmitRequest)
_ENCODER = msgspec.msgpack.Encoder()


def encode(message: SubmitRequest | StepEvent) -> bytes:
    """Bytes cross a Serve handle for a fraction of the cost of a pickled object."""
    return _ENCODER.encode(message)


def decode_event(raw: bytes) -> StepEvent:
    """The event in ``raw``."""
    return _EVENT.decode(raw)


def decode_request(raw: bytes) -> SubmitRequest:
    """The request in ``raw``."""
    return _REQUEST.decode(raw)
