"""Tensors by gloo: host memory over TCP connections of torch's own. It is what NCCL's link is tested by on a CPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from deployments.pipeline.tensor_header import TensorHead
from deployments.stage.links.base import RECEIVER, SENDER, rooms
from deployments.stage.links.channel_store import ChannelStore
from deployments.stage.links.sender import Sender
from deployments.transport.channel import Channel

WAIT_S = 10.0  # for a neighbour to build the group, and to take or send one tensor
CPU = torch.device("cpu")


class GlooLink:
    """Headers through the channel, tensors through a process group of two that nobody else knows of.

    Gloo's connections are not authenticated and are bound to the interface that the channel uses, unless
    ``GLOO_SOCKET_IFNAME`` names another.

    Args:
        channel: to the neighbour, who builds the same group at the same time.
        device: where tensors go.
        rank: ``SENDER`` or ``RECEIVER``.

    Raises:
        EOFError, OSError: the neighbour is gone, or too slow.
    """

    kind = "gloo"

    def __init__(self, channel: Channel, device: torch.device, rank: int) -> None:
        self._channel = channel
        self._device = device
        self._sender = Sender(channel.close)
        store = ChannelStore(channel, WAIT_S)
        try:
            self._group: Any = dist.ProcessGroupGloo(store, rank, 2, _options(channel))
            store.finish()
        except RuntimeError as error:
            raise EOFError(f"no gloo group with the neighbour: {error}") from error
        self._store = store  # the group refers to it without keeping it

    def prepare(self, header: bytearray, tensors: Sequence[Tensor]) -> None:
        """As ``Link.prepare``: nothing."""

    def send(self, header: bytes | bytearray, tensors: Sequence[Tensor]) -> None:
        """As ``Link.send``; tensors of a GPU are copied to the host first."""
        hosted = [tensor.detach().cpu().contiguous() for tensor in tensors if tensor.numel()]
        if not hosted:
            self._sender.run(lambda: self._channel.send(header))
            return
        self._sender.run(lambda: self._deliver(header, hosted))

    def _deliver(self, header: bytes | bytearray, tensors: Sequence[Tensor]) -> None:
        self._channel.send(header)
        for work in [self._group.send([tensor], RECEIVER, 0) for tensor in tensors]:
            work.wait(timedelta(seconds=WAIT_S))

    def header(self) -> bytes:
        """As ``Link.header``."""
        return self._channel.receive()

    def tensors(self, heads: Sequence[TensorHead]) -> list[Tensor]:
        """As ``Link.tensors``; a neighbour that announced tensors has ``WAIT_S`` to send them."""
        found = rooms(heads, CPU)
        try:
            for work in [self._group.recv([tensor], SENDER, 0) for tensor in found if tensor.numel()]:
                work.wait(timedelta(seconds=WAIT_S))
        except RuntimeError as error:
            raise EOFError(f"the neighbour's tensors did not come: {error}") from error
        return [tensor.to(self._device) for tensor in found]

    def close(self) -> None:
        """As ``Link.close``."""
        self._channel.close()
        self._sender.close()


def _options(channel: Channel) -> Any:
    """One connection, one thread, bounded waits. Torch has no public name for these."""
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
    where = {"interface": interface} if interface else {"hostname": channel.local_host}
    options._devices = [dist.ProcessGroupGloo.create_device(**where)]
    options._threads = 1
    options._timeout = timedelta(seconds=WAIT_S)
    return options
