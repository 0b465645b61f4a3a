"""What a link is: the way of frames and their tensors from one stage to the stage behind it.

It knows bytes, tensors and one authenticated channel; not what a frame says, nor what a stage does with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

import msgspec
import torch
from msgspec import Meta
from torch import Tensor

from deployments.channel import MAX_FRAME

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MAX_DIMENSIONS = 4
SENDER, RECEIVER = 0, 1  # ranks of the stage that connected and of the one that accepted


class TensorHead(msgspec.Struct, frozen=True, array_like=True):
    """What a receiver has to know of a tensor that is about to come; whatever a peer writes, it is bounded."""

    dtype: Literal["float32", "bfloat16", "float16"]
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=MAX_FRAME)], ...], Meta(max_length=MAX_DIMENSIONS)]

    @classmethod
    def of(cls, tensor: Tensor) -> TensorHead:
        """The head of a tensor; a dtype that does not travel is refused by the receiver."""
        return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))  # type: ignore[arg-type]

    @property
    def n_bytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * _DTYPES[self.dtype].itemsize

    def empty(self, device: torch.device) -> Tensor:
        """Room for the tensor."""
        return torch.empty(self.shape, dtype=_DTYPES[self.dtype], device=device)


def rooms(heads: Sequence[TensorHead], device: torch.device) -> list[Tensor]:
    """Room for all tensors of a frame.

    Raises:
        EOFError: they are larger than a frame may be, or than the device has room for.
    """
    n_bytes = sum(head.n_bytes for head in heads)
    if n_bytes > MAX_FRAME:
        raise EOFError(f"tensors of {n_bytes} bytes are longer than {MAX_FRAME}")
    try:
        return [head.empty(device) for head in heads]
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

    def send(self, header: bytes, tensors: Sequence[Tensor]) -> None:
        """Hand a frame over without waiting for the neighbour to take it. The tensors must not change any more.

        Raises:
            OSError, EOFError: the neighbour is lost, which may show only some frames later.
        """

    def header(self) -> bytes:
        """The next frame's header; raises EOFError or OSError when the neighbour is lost."""

    def tensors(self, heads: Sequence[TensorHead]) -> list[Tensor]:
        """The tensors that the header announced, on this stage's device; raises like ``header``."""

    def close(self) -> None:
        """Drop the connection; what was not sent yet is lost."""
