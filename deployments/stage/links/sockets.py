"""Tensors through the authenticated channel itself, right after their header: the default link without GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from deployments.pipeline.tensor_header import TensorHeader
from deployments.stage.links.base import allocate
from deployments.stage.links.sender import Sender
from deployments.transport.channel import Channel

CPU = torch.device("cpu")
AT_ONCE = 1 << 18  # bytes: to send up to so many directly takes less time than to wake a thread for it


class SocketLink:
    """Headers and tensors share one connection; this process makes no copy of either.

    Args:
        channel: to the neighbour.
        device: where tensors go.
    """

    kind = "socket"

    def __init__(self, channel: Channel, device: torch.device) -> None:
        self._channel = channel
        self._device = device
        self._sender = Sender(channel.close)
        self._prepared: tuple[bytearray | None, list[memoryview]] = (None, [])

    def prepare(self, header: bytearray, tensors: Sequence[Tensor]) -> None:
        """As ``Link.prepare``; for tensors of a GPU nothing, as they can be copied only once they are computed."""
        if all(tensor.device == CPU for tensor in tensors):
            self._prepared = (header, self._parts(header, tensors))

    def _parts(self, header: bytes | bytearray, tensors: Sequence[Tensor]) -> list[memoryview]:
        parts = self._channel.frame(header)
        return parts + [_bytes_of(tensor.detach().cpu().contiguous()) for tensor in tensors if tensor.numel()]

    def send(self, header: bytes | bytearray, tensors: Sequence[Tensor]) -> None:
        """As ``Link.send``; tensors of a GPU are copied to the host first."""
        prepared, parts = self._prepared
        self._prepared = (None, [])
        if prepared is not header:
            parts = self._parts(header, tensors)
        rest: Callable[[], None] | None = partial(self._channel.send_all, parts)
        if self._sender.is_idle and sum(part.nbytes for part in parts) <= AT_ONCE:
            rest = self._channel.send_now(parts)
        if rest is not None:
            self._sender.run(rest)

    def header(self) -> bytes:
        """As ``Link.header``."""
        return self._channel.receive()

    def tensors(self, headers: Sequence[TensorHeader]) -> list[Tensor]:
        """As ``Link.tensors``."""
        found = allocate(headers, CPU)
        for tensor in found:
            if tensor.numel():
                self._channel.receive_into(_bytes_of(tensor))
        return [tensor.to(self._device) for tensor in found]

    def close(self) -> None:
        """As ``Link.close``."""
        self._channel.close()
        self._sender.close()


def _bytes_of(tensor: Tensor) -> memoryview:
    """The elements as bytes (numpy has no bfloat16), without a copy; the view keeps the tensor alive."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
