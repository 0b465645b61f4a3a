"""Two ends of a link between stages, both in this process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import torch
from torch import Tensor

from deployments.pipeline.tensor_header import TensorHeader
from deployments.stage.links.base import Link
from deployments.stage.links.negotiation import accept_link, offer_link
from deployments.transport.addresses import listen
from deployments.transport.channel import Channel

SECRET = b"s" * 32
CPU = torch.device("cpu")
KINDS = {"socket": "auto", "gloo": "gloo"}  # kind of link: the option ``transport``
LARGE = 8 << 20  # bytes: more than any socket buffer here holds


class Peers:
    """Channels from one end to the other, and threads that build links on both ends at once."""

    def __init__(self, address: str) -> None:
        self._server, self.address = listen(address)
        self._threads = ThreadPoolExecutor(2)
        self._open: list[Any] = []

    def accept(self) -> Channel:
        taken: list[Channel] = []
        Channel.accept(self._server.accept()[0], SECRET, ["stage"], taken.append)
        self._open += taken
        return taken[0]

    def channels(self) -> tuple[Channel, Channel]:
        accepted = self._threads.submit(self.accept)
        connected = Channel.connect(self.address, SECRET, "stage")
        self._open.append(connected)
        return connected, accepted.result()

    def links(self, transport: str = "auto") -> tuple[Link, Link]:
        connected, accepted = self.channels()
        offered = self._threads.submit(offer_link, connected, transport, CPU)
        receiver = accept_link(accepted, transport, CPU)
        self._open += [receiver, offered.result()]
        return offered.result(), receiver

    def close(self) -> None:
        for one in self._open:
            one.close()
        self._server.close()
        self._threads.shutdown()


def received(link: Link) -> list[Tensor]:
    """The tensors of a frame that ``deliver`` sent."""
    return link.tensors(msgspec.msgpack.decode(link.header(), type=list[TensorHeader]))


def deliver(link: Link, tensors: list[Tensor]) -> None:
    link.send(msgspec.msgpack.encode([TensorHeader.of(tensor) for tensor in tensors]), tensors)


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    pairs = list(zip(found, expected, strict=True))
    return all(a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b) for a, b in pairs)
