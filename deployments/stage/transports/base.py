"""The interface of a link, which carries frames and their tensors from one stage to the next.

A link knows bytes, tensors and one authenticated channel; not what a frame says, nor what a stage does with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from deployments.channels.channel import MAX_FRAME
from deployments.pipeline.tensor_header import TensorHeader

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SENDER, RECEIVER = 0, 1  # ranks of the stage that connected and of the one that accepted


def allocate(headers: Sequence[TensorHeader], device: torch.device) -> list[Tensor]:
    """Uninitialised memory for all tensors of a frame.

    Raises:
        EOFError: the tensors are larger than a frame may be, or than the device has memory for.
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


class Link(Protocol):
    """One direction between two neighbours: the stage that connected sends, the one that accepted receives.

    ``send`` is called by the loop of the sending stage, ``header`` and ``receive`` by one thread of the receiving one;
    ``close`` may be called by any thread and wakes both.
    """

    kind: str  # "socket", "gloo" or "nccl"

    def send(
        self, header: bytes | bytearray, tensors: Sequence[Tensor], ready: Callable[[], None] | None = None
    ) -> None:
        """Send a frame, after those before it, without waiting for the neighbour to receive it nor for the device that
        computes the tensors. These must not change once they are true.

        Args:
            header: of the frame.
            tensors: on this stage's device.
            ready: returns when the tensors are true, and may still write to the header. A thread of the link calls it,
                and the header leaves only then: the neighbour may rely on what it announces. None: they are true.

        Raises:
            OSError, EOFError: the neighbour is lost, which may show only some frames later.
        """

    def header(self) -> bytes:
        """The header of the next frame; raises EOFError or OSError when the neighbour is lost."""

    def receive(self, headers: Sequence[TensorHeader]) -> Callable[[], list[Tensor]]:
        """Begin to receive the next tensors, which may be sent later than that, after any number of headers.

        Returns a function that waits for them: to be called before ``receive`` is called again, and once the frame that
        they belong to has arrived, because it has a time limit. It returns the tensors on this stage's device.

        Raises:
            EOFError, OSError: the neighbour is lost. The returned function raises them too.
        """

    def close(self) -> None:
        """Drop the connection and all frames that were not sent yet; never waits, and may be called again."""
