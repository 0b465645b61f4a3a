"""What a link is: the way of frames and their tensors from one stage to the stage behind it.

It knows bytes, tensors and one authenticated channel; not what a frame says, nor what a stage does with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from deployments.pipeline.tensor_header import TensorHeader
from deployments.transport.channel import MAX_FRAME

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SENDER, RECEIVER = 0, 1  # ranks of the stage that connected and of the one that accepted


def allocate(headers: Sequence[TensorHeader], device: torch.device) -> list[Tensor]:
    """Uninitialised memory for all tensors of a frame.

    Raises:
        EOFError: they are larger than a frame may be, or than the device has room for.
    """
    n_bytes = sum(header.n_bytes for header in headers)
    if n_bytes > MAX_FRAME:
        raise EOFError(f"tensors of {n_bytes} bytes are longer than {MAX_FRAME}")
    try:
        return [torch.empty(header.shape, dtype=_DTYPES[header.dtype], device=device) for header in headers]
    except torch.AcceleratorError:  # this device is broken, not the peer
        raise
    except (RuntimeError, ValueError, OverflowError) as error:
        raise EOFError(f"no room for the tensors of a frame: {error}") from error


class Link(Protocol):
    """One direction between two neighbours: the stage that connected sends, the one that accepted receives.

    ``send`` belongs to the loop of the one stage, ``header`` and ``tensors`` to one thread of the other; ``close`` may
    come from anywhere and wakes both.
    """

    kind: str

    def prepare(self, header: bytearray, tensors: Sequence[Tensor]) -> None:
        """Do what can be done for the ``send`` of just these before the tensors are whole. ``header`` may still change,
        but not its length."""

    def send(self, header: bytes | bytearray, tensors: Sequence[Tensor]) -> None:
        """Hand a frame over without waiting for the neighbour to take it. The tensors must not change any more.

        Raises:
            OSError, EOFError: the neighbour is lost, which may show only some frames later.
        """

    def header(self) -> bytes:
        """The next frame's header; raises EOFError or OSError when the neighbour is lost."""

    def tensors(self, headers: Sequence[TensorHeader]) -> list[Tensor]:
        """The tensors that the header announced, on this stage's device; raises like ``header``."""

    def close(self) -> None:
        """Drop the connection; what was not sent yet is lost."""
