"""The header of a tensor that follows a frame. Does not import torch, because routers write frames too."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from deployments.channels.channel import MAX_FRAME

if TYPE_CHECKING:
    from torch import Tensor

_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of an element
MAX_DIMENSIONS = 4


class TensorHeader(msgspec.Struct, frozen=True, array_like=True):
    """dtype and shape of a tensor. Decoding bounds both, whatever a peer writes."""

    dtype: Literal["float32", "bfloat16", "float16"]
    shape: Annotated[tuple[Annotated[int, Meta(ge=0, le=MAX_FRAME)], ...], Meta(max_length=MAX_DIMENSIONS)]

    @classmethod
    def of(cls, tensor: Tensor) -> TensorHeader:
        """The header of a tensor; the receiver refuses a dtype that is not listed above."""
        return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))  # type: ignore[arg-type]

    @property
    def n_bytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * _SIZES[self.dtype]
