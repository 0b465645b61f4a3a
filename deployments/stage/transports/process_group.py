"""Tensors by a process group of two stages: by NCCL from one GPU's memory to another's, by gloo between hosts' memory.

Frame headers go through the authenticated channel, and so does the rendezvous of the group; the data connections are
the library's own and not authenticated. On a CPU the tests cover both kinds through gloo.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from deployments.channels.channel import Channel
from deployments.pipeline.frames import TensorHeader
from deployments.stage.transports.base import CPU, RECEIVER, SENDER, HostCopies, allocate
from deployments.stage.transports.channel_store import ChannelStore
from deployments.stage.transports.threads import BackgroundSender, Watchdog
from engine.parallel.exchanges import NCCL_ENVIRONMENT, build_within

WAIT_S = 10.0  # seconds for tensors that were announced, and for the neighbour to build a gloo group
BUILD_S = 60.0  # seconds for both neighbours to build an NCCL communicator


class ProcessGroupTransport:
    """Common part of both: frame headers over the channel, and a process group of exactly these two stages.

    Args:
        channel: to the neighbour, which builds the same group at the same time.
        device: of this stage.
        store: rendezvous over the channel.
    """

    kind: str

    def __init__(self, channel: Channel, device: torch.device, store: ChannelStore) -> None:
        self._channel = channel
        self._device = device
        self._store = store  # keeps it alive: the group does not
        self._group: Any = None
        self._sender = BackgroundSender(channel.close)

    def header(self) -> bytes:
        """As ``Transport.header``."""
        return self._channel.receive()

    def _announce(self, header: bytes | bytearray, ready: Callable[[], None] | None) -> None:
        if ready is not None:
            ready()
        self._channel.send(header)

    def close(self) -> None:
        """As ``Transport.close``."""
        self._channel.close()
        self._sender.close()


class GlooTransport(ProcessGroupTransport):
    """Host memory over TCP connections of torch's own, bound to the interface that the channel uses, unless
    ``GLOO_SOCKET_IFNAME`` names another.

    Args:
        channel: to the neighbour.
        device: where tensors go.
        rank: ``SENDER`` or ``RECEIVER``.

    Raises:
        EOFError, OSError: the neighbour is gone, or too slow.
    """

    kind = "gloo"

    def __init__(self, channel: Channel, device: torch.device, rank: int) -> None:
        super().__init__(channel, device, ChannelStore(channel, WAIT_S))
        self._copies = HostCopies(device)
        try:
            self._group = dist.ProcessGroupGloo(self._store, rank, 2, _gloo_options(channel))
            self._store.finish()
        except RuntimeError as error:
            raise EOFError(f"no gloo group with the neighbour: {error}") from error

    def send(
        self, header: bytes | bytearray, tensors: Sequence[Tensor], ready: Callable[[], None] | None = None
    ) -> None:
        """As ``Transport.send``; tensors of a GPU are copied to the host first."""
        self._sender.run(partial(self._deliver, header, tensors, ready))

    def _deliver(self, header: bytes | bytearray, tensors: Sequence[Tensor], ready: Callable[[], None] | None) -> None:
        self._announce(header, ready)
        for work in [self._group.send([tensor], RECEIVER, 0) for tensor in self._copies.to_host(tensors)]:
            work.wait(timedelta(seconds=WAIT_S))

    def receive(self, headers: Sequence[TensorHeader]) -> Callable[[], list[Tensor]]:
        """As ``Transport.receive``."""
        tensors = allocate(headers, CPU)
        try:
            works = [self._group.recv([tensor], SENDER, 0) for tensor in tensors if tensor.numel()]
        except RuntimeError as error:
            raise EOFError(f"gloo lost the neighbour: {error}") from error
        return partial(self._await, tensors, works)

    def _await(self, tensors: Sequence[Tensor], works: Sequence[Any]) -> list[Tensor]:
        try:
            for work in works:
                work.wait(timedelta(seconds=WAIT_S))
        except RuntimeError as error:
            raise EOFError(f"the neighbour's tensors did not come: {error}") from error
        return self._copies.to_device(tensors)


def _gloo_options(channel: Channel) -> Any:
    """One connection, one thread, bounded waits. Torch has no public name for these."""
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
    where = {"interface": interface} if interface else {"hostname": channel.local_host}
    options._devices = [dist.ProcessGroupGloo.create_device(**where)]
    options._threads = 1
    options._timeout = timedelta(seconds=WAIT_S)
    return options


class NcclTransport(ProcessGroupTransport):
    """Memory of one GPU to that of another.

    All transfers run on a stream of the transport's own and never delay the stage's kernels. A send is enqueued
    after the step that computes its tensors, while that still runs; the header follows when the step is over. A receive
    spins on a multiprocessor until the tensors come, so only an idle stage should begin one before the header.

    NCCL notices no lost neighbour: a transfer that cannot end spins on the device for ever. So the host never waits for
    NCCL itself, but for a CUDA event. A watchdog aborts the group, and with it the transport, once either side closes
    the channel, or a transfer takes too long. Nothing else aborts it: an abort may block, and two at once hang.

    Args:
        channel: to the neighbour.
        device: of this stage; not the neighbour's.
        rank: ``SENDER`` or ``RECEIVER``.
        is_abandoned: whether the transport is no longer needed; building it then ends at once.

    Raises:
        EOFError, OSError: the neighbour is gone, or too slow, or NCCL finds no way to it.
    """

    kind = "nccl"

    def __init__(
        self, channel: Channel, device: torch.device, rank: int, is_abandoned: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(channel, device, ChannelStore(channel, BUILD_S))
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        os.environ.update(NCCL_ENVIRONMENT)
        self._group = dist.ProcessGroupNCCL(self._store, rank, 2, dist.ProcessGroupNCCL.Options())
        self._watchdog = Watchdog(channel, self._group.abort)
        try:
            build_within(BUILD_S, lambda: self._build(rank), lambda: channel.is_hung_up or is_abandoned())
        except BaseException:
            self.close()
            raise

    def _build(self, rank: int) -> None:
        """Transfer one element: the communicator is built with the first transfer, which must not fall in a step."""
        with torch.cuda.stream(self._stream):
            element = torch.zeros(1, device=self._device)
        self._settle(self._transfer([element], rank))
        self._store.finish()

    def _transfer(self, tensors: Sequence[Tensor], rank: int) -> torch.cuda.Event:
        """Enqueue sends or receives on the transport's stream; the returned event is reached once they are over."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        try:
            with torch.cuda.stream(self._stream):
                for tensor in tensors:
                    sends = rank == SENDER
                    work = self._group.send([tensor], RECEIVER, 0) if sends else self._group.recv([tensor], SENDER, 0)
                    work.wait()  # blocks the stream, not the host
                event.record(self._stream)
        except torch.AcceleratorError:  # this device is broken, not the neighbour
            raise
        except RuntimeError as error:
            raise EOFError(f"NCCL lost the neighbour: {error}") from error
        return event

    def send(
        self, header: bytes | bytearray, tensors: Sequence[Tensor], ready: Callable[[], None] | None = None
    ) -> None:
        """As ``Transport.send``; the tensors are computed on the current stream."""
        filled = [tensor.detach().contiguous() for tensor in tensors if tensor.numel()]
        if filled:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            self._transfer(filled, SENDER)
            for tensor in filled:  # their memory may be reused once they are sent
                tensor.record_stream(self._stream)
        self._sender.run(partial(self._announce, header, ready))

    def receive(self, headers: Sequence[TensorHeader]) -> Callable[[], list[Tensor]]:
        """As ``Transport.receive``: the tensors are complete when the returned function returns, for every stream."""
        with torch.cuda.stream(self._stream):
            tensors = allocate(headers, self._device)
        filled = [tensor for tensor in tensors if tensor.numel()]
        for tensor in filled:  # allocated on the transport's stream, read on the stage's
            tensor.record_stream(torch.cuda.default_stream(self._device))
        return partial(self._await, tensors, self._transfer(filled, RECEIVER))

    def _await(self, tensors: list[Tensor], over: torch.cuda.Event) -> list[Tensor]:
        self._settle(over)
        return tensors

    def _settle(self, event: torch.cuda.Event) -> None:
        with self._watchdog.limit(WAIT_S):
            event.synchronize()
