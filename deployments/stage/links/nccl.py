"""Tensors by NCCL, from one GPU's memory to another's.

NCCL knows no lost neighbour: a transfer that cannot end spins on the device for ever. So the host never waits for
NCCL itself, but for a CUDA event, and looks at the authenticated channel meanwhile: where that is hung up, or after a
deadline, the group is aborted, and with it the link. All transfers run on a stream of the link's own, so they neither
wait for what the stage computes nor hold it up.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from deployments.pipeline.tensor_header import TensorHead
from deployments.stage.links.base import RECEIVER, SENDER, rooms
from deployments.stage.links.channel_store import ChannelStore
from deployments.transport.channel import Channel

BUILD_S = 60.0  # for both to build a communicator
WAIT_S = 10.0  # for tensors that were announced
LOOK_S = 0.1  # between two looks, while a communicator is built, at whether anybody still wants it
POLL_S = 20e-6  # a transfer of a megabyte takes about so long
# Read by torch when a group is made. By default a lost neighbour ends the whole process; here it costs the link.
ENVIRONMENT = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}


class NcclLink:
    """Headers through the channel, tensors through a process group of two that nobody else knows of.

    Args:
        channel: to the neighbour, who builds the same group at the same time.
        device: of this stage; not the neighbour's.
        rank: ``SENDER`` or ``RECEIVER``.
        is_abandoned: whether nobody wants the link any more; building it then ends at once.

    Raises:
        EOFError, OSError: the neighbour is gone, or too slow, or NCCL finds no way to it.
    """

    kind = "nccl"

    def __init__(
        self, channel: Channel, device: torch.device, rank: int, is_abandoned: Callable[[], bool] = lambda: False
    ) -> None:
        self._channel = channel
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._sending: deque[tuple[torch.cuda.Event, list[Tensor]]] = deque()  # kept alive until they are gone
        os.environ.update(ENVIRONMENT)
        self._store = ChannelStore(channel, BUILD_S)
        self._group: Any = dist.ProcessGroupNCCL(self._store, rank, 2, dist.ProcessGroupNCCL.Options())
        try:
            build_within(BUILD_S, lambda: self._build(rank), lambda: channel.is_hung_up or is_abandoned())
        except BaseException:
            self.close()
            raise

    def _build(self, rank: int) -> None:
        """One element there: the communicator is built with the first transfer, and not within a step."""
        with torch.cuda.stream(self._stream):
            element = torch.zeros(1, device=self._device)
        self._settle(self._transfer([element], rank))
        self._store.finish()

    def _transfer(self, tensors: Sequence[Tensor], rank: int) -> torch.cuda.Event:
        """Enqueue sends or receives on the link's stream; the event tells when they are over."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        try:
            with torch.cuda.stream(self._stream):
                for tensor in tensors:
                    sends = rank == SENDER
                    work = self._group.send([tensor], RECEIVER, 0) if sends else self._group.recv([tensor], SENDER, 0)
                    work.wait()  # lets the stream wait, not the host
                event.record(self._stream)
        except torch.AcceleratorError:  # this device is broken, not the neighbour
            raise
        except RuntimeError as error:
            raise EOFError(f"NCCL lost the neighbour: {error}") from error
        return event

    def prepare(self, header: bytearray, tensors: Sequence[Tensor]) -> None:
        """As ``Link.prepare``: nothing."""

    def send(self, header: bytes | bytearray, tensors: Sequence[Tensor]) -> None:
        """As ``Link.send``; what computes the tensors must be over (the loop has synchronised)."""
        while self._sending and _is_over(self._sending[0][0]):
            self._sending.popleft()
        self._channel.send(header)
        filled = [tensor.detach().contiguous() for tensor in tensors if tensor.numel()]
        if filled:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))  # for ``contiguous``
            self._sending.append((self._transfer(filled, SENDER), filled))

    def header(self) -> bytes:
        """As ``Link.header``."""
        return self._channel.receive()

    def tensors(self, heads: Sequence[TensorHead]) -> list[Tensor]:
        """As ``Link.tensors``: complete when it returns, for every stream."""
        with torch.cuda.stream(self._stream):
            found = rooms(heads, self._device)
        filled = [tensor for tensor in found if tensor.numel()]
        if filled:
            self._settle(self._transfer(filled, RECEIVER))
            for tensor in filled:  # made on the link's stream, read on the stage's
                tensor.record_stream(torch.cuda.default_stream(self._device))
        return found

    def _settle(self, event: torch.cuda.Event) -> None:
        deadline = time.monotonic() + WAIT_S
        while not _is_over(event):
            if self._channel.is_hung_up or time.monotonic() > deadline:
                self._group.abort()
                raise EOFError("the neighbour's tensors did not come")
            time.sleep(POLL_S)

    def close(self) -> None:
        """As ``Link.close``; kernels that still wait for the neighbour are ended."""
        self._channel.close()
        self._group.abort()
        self._sending.clear()


def _is_over(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]


def build_within(seconds: float, build: Callable[[], None], is_abandoned: Callable[[], bool]) -> None:
    """Run what may block in a library beyond any deadline of its own; whoever calls then has to abort it.

    Raises:
        EOFError: it takes longer than ``seconds``, or ``is_abandoned`` has become true.
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            build()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="stage-nccl", daemon=True)
    thread.start()
    deadline = time.monotonic() + seconds
    while thread.is_alive():
        thread.join(min(LOOK_S, seconds))
        if thread.is_alive() and is_abandoned():
            raise EOFError("nobody waits any more for the link that was being built")
        if thread.is_alive() and time.monotonic() > deadline:
            raise EOFError(f"NCCL built no communicator within {seconds:.0f} seconds")
    if failed:
        raise failed[0]
