"""Two ends of a transport between stages, both in this process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec
import torch
from torch import Tensor

from deployments.pipeline.frames import TensorHeader
from deployments.stage.transports.base import Transport
from deployments.stage.transports.negotiation import accept_transport, offer_transport
from tests.support.listeners import Listener

CPU = torch.device("cpu")
KINDS = {"socket": "auto", "gloo": "gloo"}  # kind of transport: the option ``transport``
LARGE = 8 << 20  # bytes: more than any socket buffer here holds


class Peers(Listener):
    """Both ends of channels and transports between two stages."""

    def transports(self, transport: str = "auto") -> tuple[Transport, Transport]:
        connected, accepted = self.pair("stage")
        with ThreadPoolExecutor() as threads:  # both ends build a transport at once
            offered = threads.submit(offer_transport, connected, transport, CPU)
            receiver = accept_transport(accepted, transport, CPU)
            self._open += [receiver, offered.result()]
        return offered.result(), receiver


def received(transport: Transport) -> list[Tensor]:
    """The tensors of a frame that ``deliver`` sent."""
    return transport.receive(msgspec.msgpack.decode(transport.header(), type=list[TensorHeader]))()


def deliver(transport: Transport, tensors: list[Tensor]) -> None:
    transport.send(msgspec.msgpack.encode([TensorHeader.of(tensor) for tensor in tensors]), tensors)


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    pairs = list(zip(found, expected, strict=True))
    return all(a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b) for a, b in pairs)
