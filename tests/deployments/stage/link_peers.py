"""Two ends of a link between stages, both in this process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec
import torch
from torch import Tensor

from deployments.pipeline.tensor_header import TensorHeader
from deployments.stage.transports.base import Link
from deployments.stage.transports.negotiation import accept_link, offer_link
from tests.support.listeners import Listener

CPU = torch.device("cpu")
KINDS = {"socket": "auto", "gloo": "gloo"}  # kind of link: the option ``transport``
LARGE = 8 << 20  # bytes: more than any socket buffer here holds


class Peers(Listener):
    """Both ends of channels and links between two stages."""

    def links(self, transport: str = "auto") -> tuple[Link, Link]:
        connected, accepted = self.pair("stage")
        with ThreadPoolExecutor() as threads:  # both ends build a link at once
            offered = threads.submit(offer_link, connected, transport, CPU)
            receiver = accept_link(accepted, transport, CPU)
            self._open += [receiver, offered.result()]
        return offered.result(), receiver


def received(link: Link) -> list[Tensor]:
    """The tensors of a frame that ``deliver`` sent."""
    return link.receive(msgspec.msgpack.decode(link.header(), type=list[TensorHeader]))()


def deliver(link: Link, tensors: list[Tensor]) -> None:
    link.send(msgspec.msgpack.encode([TensorHeader.of(tensor) for tensor in tensors]), tensors)


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    pairs = list(zip(found, expected, strict=True))
    return all(a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b) for a, b in pairs)
