"""Tensors through the authenticated channel itself, right after their header: the default without GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from deployments.channels.channel import Channel
from deployments.pipeline.frames import TensorHeader
from deployments.stage.transports.base import CPU, HostCopies, allocate
from deployments.stage.transports.threads import BackgroundSender
from engine.device import bytes_of

AT_ONCE = 1 << 18  # bytes: sending up to this many directly takes less time than waking a thread


class SocketTransport:
    """Headers and tensors share one connection; this process makes no copy of either.

    Args:
        channel: to the neighbour.
        device: where tensors go.
    """

    kind = "socket"

    def __init__(self, channel: Channel, device: torch.device) -> None:
        self._channel = channel
        self._copies = HostCopies(device)
        self._sender = BackgroundSender(channel.close)

    def send(
        self, header: bytes | bytearray, tensors: Sequence[Tensor], ready: Callable[[], None] | None = None
    ) -> None:
        """As ``Transport.send``; tensors of a GPU are copied to the host first."""
        if ready is not None:
            self._sender.run(partial(self._deliver, header, tensors, ready))
            return
        parts = self._parts(header, tensors)
        rest: Callable[[], None] | None = partial(self._channel.send_all, parts)
        if self._sender.is_idle and sum(part.nbytes for part in parts) <= AT_ONCE:
            rest = self._channel.send_now(parts)
        if rest is not None:
            self._sender.run(rest)

    def _deliver(self, header: bytes | bytearray, tensors: Sequence[Tensor], ready: Callable[[], None]) -> None:
        ready()
        self._channel.send_all(self._parts(header, tensors))

    def _parts(self, header: bytes | bytearray, tensors: Sequence[Tensor]) -> list[memoryview]:
        return self._channel.frame(header) + [bytes_of(tensor) for tensor in self._copies.to_host(tensors)]

    def header(self) -> bytes:
        """As ``Transport.header``."""
        return self._channel.receive()

    def receive(self, headers: Sequence[TensorHeader]) -> Callable[[], list[Tensor]]:
        """As ``Transport.receive``; until the returned function is called, tensors wait in the sockets' buffers."""
        return partial(self._read, allocate(headers, CPU))

    def _read(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        for tensor in tensors:
            if tensor.numel():
                self._channel.receive_into(bytes_of(tensor))
        return self._copies.to_device(tensors)

    def close(self) -> None:
        """As ``Transport.close``."""
        self._channel.close()
        self._sender.close()
