"""The two frames of a step between stages: the step itself, sent on at once, and later the outcome so far.

So all stages prepare a step while the first one computes it. The tensors between two stages are part of neither frame:
a transport (``deployments.stage.transports``) carries them. Routers write frames too, so torch is not imported here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from deployments.channels.channel import MAX_FRAME
from engine.stage.base import Activations
from engine.step import Step, encode

if TYPE_CHECKING:
    from torch import Tensor

MAX_DIMENSIONS = 4  # of a tensor
_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of an element


class TensorHeader(msgspec.Struct, frozen=True, array_like=True):
    """dtype and shape of a tensor. Decoding bounds both."""

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


class StepFrame(msgspec.Struct, frozen=True, array_like=True):
    """A step, and the tensors that follow its outcome even if it fails; empty if they are not known yet."""

    step: bytes
    tensors: tuple[TensorHeader, ...] = ()


class OutcomeFrame(msgspec.Struct, frozen=True, array_like=True):
    """The outcome, on the stages so far, of the step whose frame came last."""

    tensors: tuple[TensorHeader, ...] = ()  # hidden states, and those of tapped layers and of a drafter where needed
    is_fused: bool = False  # whether the last tensor is a drafter's
    error: str = ""  # why an earlier stage failed the step; the tensors are then invalid
    rows_at: tuple[str, ...] = ()  # addresses of the stages that keep attention rows of this step
    seconds: tuple[float, ...] = ()  # busy time of the stages so far, first to last; the last field, for ``stamp``


_FLOAT64 = 0xCB  # MessagePack: eight bytes follow
_ENCODER = msgspec.msgpack.Encoder()
_STEP, _OUTCOME = msgspec.msgpack.Decoder(StepFrame), msgspec.msgpack.Decoder(OutcomeFrame)


def encode_step_frame(step: Step | bytes, tensors: tuple[TensorHeader, ...] = ()) -> bytes:
    """The frame of a step; one that is already encoded is copied as it is."""
    return _ENCODER.encode(StepFrame(step if isinstance(step, bytes) else encode(step), tensors))


def encode_outcome(outcome: OutcomeFrame) -> bytearray:
    """The frame of an outcome, for ``stamp``."""
    frame = bytearray()
    _ENCODER.encode_into(outcome, frame)
    return frame


def stamp(frame: bytearray, seconds: float) -> None:
    """Overwrite the last of ``seconds`` in an encoded outcome: a stage knows its own time when the rest is encoded."""
    assert frame[-9] == _FLOAT64, "the frame has no times"
    struct.pack_into(">d", frame, len(frame) - 8, seconds)


def decode_step_frame(raw: bytes) -> StepFrame:
    """Decode a frame; its step stays encoded.

    Raises:
        msgspec.DecodeError: ``raw`` is not MessagePack (its subclass ValidationError: not such a frame).
    """
    return _STEP.decode(raw)


def decode_outcome(raw: bytes) -> OutcomeFrame:
    """Decode a frame; raises like ``decode_step_frame``."""
    return _OUTCOME.decode(raw)


def tensors_of(activations: Activations) -> list[Tensor]:
    """The tensors that a transport carries, in order."""
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
