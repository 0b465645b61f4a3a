"""What one stage sends to the next: the step itself, and hidden states as raw bytes."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from engine.stage import Activations
from engine.step import Step, decode_step, encode

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class WireTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor as raw bytes; numpy has no bfloat16, so the bytes are taken as they are."""

    dtype: str
    shape: tuple[int, ...]
    raw: bytes


class StageFrame(msgspec.Struct, frozen=True, array_like=True):
    """A step on its way; ``hidden`` is absent between router and first stage."""

    step: bytes
    hidden: WireTensor | None = None
    tapped: WireTensor | None = None
    error: str = ""  # an earlier stage could not run the step; the rest only pass it on
    rows_at: tuple[str, ...] = ()  # addresses of stages that wait to be asked for attention rows


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(StageFrame)


def pack_tensor(tensor: Tensor | None) -> WireTensor | None:
    """From any device."""
    if tensor is None:
        return None
    flat = tensor.detach().cpu().contiguous()
    raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return WireTensor(str(flat.dtype).removeprefix("torch."), tuple(flat.shape), raw)


def unpack_tensor(wire: WireTensor | None, device: torch.device) -> Tensor | None:
    """To a device.

    Raises:
        msgspec.ValidationError: the dtype is none that travels.
    """
    if wire is None:
        return None
    if wire.dtype not in _DTYPES:
        raise msgspec.ValidationError(f"tensors of dtype {wire.dtype!r} do not travel")
    flat = torch.frombuffer(bytearray(wire.raw), dtype=_DTYPES[wire.dtype]) if wire.raw else torch.empty(0)
    return flat.reshape(wire.shape).to(device)


class Arrived(NamedTuple):
    """A decoded frame."""

    step: Step
    activations: Activations | None
    error: str
    rows_at: tuple[str, ...]


def encode_frame(step: Step, activations: Activations | None, error: str = "", rows_at: tuple[str, ...] = ()) -> bytes:
    """A frame for the next stage."""
    if activations is None or error:
        return _ENCODER.encode(StageFrame(encode(step), error=error))
    hidden, tapped = pack_tensor(activations.hidden), pack_tensor(activations.tapped)
    return _ENCODER.encode(StageFrame(encode(step), hidden, tapped, rows_at=rows_at))


def decode_frame(raw: bytes, device: torch.device) -> Arrived:
    """What a frame holds.

    Raises:
        msgspec.DecodeError: it is not a frame (its subclass ValidationError: not one of ours).
        ValueError, RuntimeError: a tensor's bytes do not fit its dtype or shape.
    """
    frame = _DECODER.decode(raw)
    hidden = unpack_tensor(frame.hidden, device)
    activations = None if hidden is None else Activations(hidden, unpack_tensor(frame.tapped, device))
    return Arrived(decode_step(frame.step), activations, frame.error, frame.rows_at)
