"""What a frame between stages says: the step itself, what became of it so far, and which tensors follow.

Tensors are not part of it: a link (``deployments.stage.links``) carries them behind their frame.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from deployments.pipeline.tensor_header import TensorHeader
from engine.stage.activations import Activations
from engine.step import Step, encode

if TYPE_CHECKING:
    from torch import Tensor


class StageFrame(msgspec.Struct, frozen=True, array_like=True):
    """A step on its way; the router's has neither tensors nor times."""

    step: bytes
    tensors: tuple[TensorHeader, ...] = ()  # hidden states, and tapped ones where there are any
    error: str = ""  # an earlier stage could not run the step; the rest only pass it on
    rows_at: tuple[str, ...] = ()  # addresses of stages that wait to be asked for attention rows
    seconds: tuple[float, ...] = ()  # busy time of the stages so far, first to last; must stay the last field


_FLOAT64 = 0xCB  # MessagePack: eight bytes follow
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(StageFrame)


def encode_frame(
    step: Step | bytes,
    activations: Activations | None,
    error: str = "",
    rows_at: tuple[str, ...] = (),
    seconds: tuple[float, ...] = (),
) -> bytearray:
    """A frame for the next stage; the tensors of ``activations`` follow it, unless there is an error. A step that
    came encoded is passed on as it came."""
    headers = () if error else tuple(map(TensorHeader.of, tensors_of(activations)))
    raw = step if isinstance(step, bytes) else encode(step)
    frame = bytearray()
    _ENCODER.encode_into(StageFrame(raw, headers, error, () if error else rows_at, seconds), frame)
    return frame


def stamp(frame: bytearray, seconds: float) -> None:
    """Write the last of ``seconds`` into an encoded frame: a stage knows its own when all else is ready to be sent."""
    assert frame[-9] == _FLOAT64, "the frame has no times"
    struct.pack_into(">d", frame, len(frame) - 8, seconds)


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
