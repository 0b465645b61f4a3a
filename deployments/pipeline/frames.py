"""A frame between stages: the step itself, its outcome so far, and headers of the tensors that follow.

The tensors themselves are not part of it: a link (``deployments.stage.links``) carries them after their frame.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from deployments.pipeline.tensor_header import TensorHeader
from engine.stage.base import Activations
from engine.step import Step, encode

if TYPE_CHECKING:
    from torch import Tensor


class StageFrame(msgspec.Struct, frozen=True, array_like=True):
    """A step between two stages; a frame of the router has neither tensors nor times."""

    step: bytes
    tensors: tuple[TensorHeader, ...] = ()  # hidden states, and those of tapped layers and of a drafter where needed
    is_fused: bool = False  # whether the last tensor is a drafter's
    error: str = ""  # why an earlier stage could not run the step; later stages only pass it on
    rows_at: tuple[str, ...] = ()  # addresses of the stages that keep attention rows of this step
    seconds: tuple[float, ...] = ()  # busy time of the stages so far, first to last; the last field, for ``stamp``


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
    """A frame for the next stage; the tensors of ``activations`` follow it, unless there is an ``error``. A step that
    is already encoded is copied as it is."""
    headers = () if error else tuple(map(TensorHeader.of, tensors_of(activations)))
    raw = step if isinstance(step, bytes) else encode(step)
    is_fused = bool(headers) and activations is not None and activations.fused is not None
    frame = bytearray()
    _ENCODER.encode_into(StageFrame(raw, headers, is_fused, error, () if error else rows_at, seconds), frame)
    return frame


def stamp(frame: bytearray, seconds: float) -> None:
    """Overwrite the last of ``seconds`` in an encoded frame: a stage knows its own time when the rest is encoded."""
    assert frame[-9] == _FLOAT64, "the frame has no times"
    struct.pack_into(">d", frame, len(frame) - 8, seconds)


def decode_frame(raw: bytes) -> StageFrame:
    """Decode a frame; its step stays encoded.

    Raises:
        msgspec.DecodeError: ``raw`` is not MessagePack (its subclass ValidationError: not a frame).
    """
    return _DECODER.decode(raw)


def tensors_of(activations: Activations | None) -> list[Tensor]:
    """The tensors that follow a frame, in order."""
    if activations is None:
        return []
    parts = (activations.hidden, activations.tapped, activations.fused)
    return [part for part in parts if part is not None]


def activations_of(tensors: Sequence[Tensor], is_fused: bool = False) -> Activations | None:
    """The activations that ``tensors_of`` took apart; None without tensors.

    Raises:
        EOFError: there are more tensors than activations have, or the drafter's alone.
    """
    most = 3 if is_fused else 2
    if len(tensors) > most or (is_fused and len(tensors) < 2):
        raise EOFError(f"a frame has at most {most} tensors, hidden states first; this one has {len(tensors)}")
    if not tensors:
        return None
    hidden, *others = tensors
    fused = others.pop() if is_fused else None
    return Activations(hidden, others[0] if others else None, fused)
