"""What a frame between stages says: the step itself, what became of it so far, and which tensors follow.

Tensors are not part of it: a link (``deployments.links``) carries them behind their frame.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from torch import Tensor

from deployments.links.base import TensorHead
from engine.stage import Activations
from engine.step import Step, encode


class StageFrame(msgspec.Struct, frozen=True, array_like=True):
    """A step on its way; the router's has neither tensors nor times."""

    step: bytes
    tensors: tuple[TensorHead, ...] = ()  # hidden states, and tapped ones where there are any
    error: str = ""  # an earlier stage could not run the step; the rest only pass it on
    rows_at: tuple[str, ...] = ()  # addresses of stages that wait to be asked for attention rows
    seconds: tuple[float, ...] = ()  # busy time of the stages so far, first to last


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(StageFrame)


def encode_frame(
    step: Step | bytes,
    activations: Activations | None,
    error: str = "",
    rows_at: tuple[str, ...] = (),
    seconds: tuple[float, ...] = (),
) -> bytes:
    """A frame for the next stage; the tensors of ``activations`` follow it, unless there is an error. A step that
    came encoded is passed on as it came."""
    heads = () if error else tuple(map(TensorHead.of, tensors_of(activations)))
    raw = step if isinstance(step, bytes) else encode(step)
    return _ENCODER.encode(StageFrame(raw, heads, error, () if error else rows_at, seconds))


def decode_frame(raw: bytes) -> StageFrame:
    """What a frame says; its step is still encoded.

    Raises:
        msgspec.DecodeError: it is not a frame (its subclass ValidationError: not one of ours).
    """
    return _DECODER.decode(raw)


def tensors_of(activations: Activations | None) -> list[Tensor]:
    """What travels behind a frame, in order."""
    if activations is None:
        return []
    return [activations.hidden] if activations.tapped is None else [activations.hidden, activations.tapped]


def activations_of(tensors: Sequence[Tensor]) -> Activations | None:
    """The other way round.

    Raises:
        EOFError: no frame of ours has so many.
    """
    if len(tensors) > 2:
        raise EOFError(f"a frame has at most 2 tensors, this one has {len(tensors)}")
    return Activations(*tensors) if tensors else None
