"""The interface of a transport, which carries frames and their tensors from one stage to the next.

A transport knows bytes, tensors and one authenticated channel; not what a frame says, nor what a stage does with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from deployments.channels.channel import MAX_FRAME
from deployments.pipeline.frames import TensorHeader

CPU = torch.device("cpu")
SENDER, RECEIVER = 0, 1  # ranks of the stage that connected and of the one that accepted
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Transport(Protocol):
    """One direction between two neighbours: the stage that connected sends, the one that accepted receives.

    ``send`` is called by the loop of the sending stage, ``header`` and ``receive`` by one thread of the receiving one;
    ``close`` may be called by any thread and wakes both.
    """

    kind: str  # "socket", "gloo" or "nccl"

    def send(
        self, header: bytes | bytearray, tensors: Sequence[Tensor], ready: Callable[[], None] | None = None
    ) -> None:
        """Send a frame after those before it. Waits neither for the neighbour nor for the device.

        Args:
            header: of the frame.
            tensors: on this stage's device. They must not change once they are computed.
            ready: returns when the tensors are computed, and may still write to the header. A thread of the transport
                calls it and then sends the header: the neighbour may rely on its contents. None: they are computed.

        Raises:
            OSError, EOFError: the neighbour is lost, which may show only some frames later.
        """

    def header(self) -> bytes:
        """The header of the next frame; raises EOFError or OSError when the neighbour is lost."""

    def receive(self, headers: Sequence[TensorHeader]) -> Callable[[], list[Tensor]]:
        """Begin to receive the next tensors, which the neighbour may send later, after any number of headers.

        Returns a function that waits for the tensors and returns them on this stage's device. It has a time limit: call
        it once their frame has arrived, and before ``receive`` is called again.

        Raises:
            EOFError, OSError: the neighbour is lost. The returned function raises them too.
        """

    def close(self) -> None:
        """Drop the connection and all unsent frames; never waits, and may be called again."""


def allocate(headers: Sequence[TensorHeader], device: torch.device) -> list[Tensor]:
    """Uninitialised memory for all tensors of a frame.

    Raises:
        EOFError: the tensors are larger than a frame may be, or than the free memory of the device.
    """
    n_bytes = sum(header.n_bytes for header in headers)
    if n_bytes > MAX_FRAME:
        raise EOFError(f"tensors of {n_bytes} bytes are longer than the limit of {MAX_FRAME}")
    try:
        return [torch.empty(header.shape, dtype=_DTYPES[header.dtype], device=device) for header in headers]
    except torch.AcceleratorError:  # this device is broken, not the peer
        raise
    except (RuntimeError, ValueError, OverflowError) as error:
        raise EOFError(f"no memory for the tensors of a frame: {error}") from error


class HostCopies:
    """Copies between a stage's device and the host, for transports that carry bytes of the host's memory.

    They run on a CUDA stream of their own: on the stage's stream they would wait for later steps. On a CPU nothing is
    copied.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        is_cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if is_cuda else None  # type: ignore[no-untyped-call]

    def to_host(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Contiguous copies of computed tensors in the host's memory, without empty ones."""
        with torch.cuda.stream(self._stream):
            return [tensor.detach().contiguous().cpu() for tensor in tensors if tensor.numel()]

    def to_device(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of the host on the stage's device, complete when this returns."""
        with torch.cuda.stream(self._stream):
            moved = [tensor.to(self._device) for tensor in tensors]
        if self._stream is not None:
            self._stream.synchronize()
            for tensor in moved:  # allocated on this stream, read on the stage's
                tensor.record_stream(torch.cuda.default_stream(self._device))
        return moved
