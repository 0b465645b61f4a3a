"""Negotiates the transport of two neighbours: the stage that connects offers kinds, the other chooses one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
import torch
import torch.distributed as dist

from deployments.channels.channel import Channel
from deployments.stage.transports.base import RECEIVER, SENDER, Transport
from deployments.stage.transports.process_group import GlooTransport, NcclTransport
from deployments.stage.transports.sockets import SocketTransport

ANSWER_S = 10.0  # seconds for an offer, and for its answer
SOCKET, GLOO, NCCL = "socket", "gloo", "nccl"


class NoCommonTransportError(EOFError):
    """Two neighbours have no kind of transport in common: the option ``transport`` does not fit their devices."""


class TransportOffer(msgspec.Struct, frozen=True, array_like=True):
    """Sent by the stage that connects."""

    kinds: tuple[str, ...]  # best first
    device: str  # ``device_name`` of its device


class TransportChoice(msgspec.Struct, frozen=True, array_like=True):
    """Sent by the stage that accepts."""

    kind: str  # "": none in common
    error: str = ""  # why


_ENCODER = msgspec.msgpack.Encoder()
_Message = TypeVar("_Message", TransportOffer, TransportChoice)


def allowed_kinds(option: str, device: torch.device) -> tuple[str, ...]:
    """Kinds of transport that the option ``transport`` allows a stage on ``device``, best first."""
    if option in (GLOO, NCCL):
        return (option,)
    if option == "auto" and device.type == "cuda" and dist.is_available() and dist.is_nccl_available():
        return (NCCL, SOCKET)
    return (SOCKET,)


def device_name(device: torch.device) -> str:
    """A name that two stages share if and only if they compute on the same device."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else device.type


def offer_transport(
    channel: Channel, option: str, device: torch.device, is_abandoned: Callable[[], bool] = lambda: False
) -> Transport:
    """Negotiate and build a transport on the connecting side; ends at once when ``is_abandoned`` becomes true.

    Raises:
        NoCommonTransportError: the neighbours have no kind of transport in common.
        EOFError, OSError: the neighbour is gone, or too slow.
    """
    kinds = allowed_kinds(option, device)
    channel.set_timeout(ANSWER_S)
    channel.send(_ENCODER.encode(TransportOffer(kinds, device_name(device))))
    choice = _receive(channel, TransportChoice)
    if choice.error:
        raise NoCommonTransportError(choice.error)
    if choice.kind not in kinds:
        raise EOFError(f"the neighbour chose the transport {choice.kind!r}, which was not offered")
    return _build(choice.kind, channel, device, SENDER, is_abandoned)


def accept_transport(channel: Channel, option: str, device: torch.device) -> Transport:
    """Negotiate and build a transport on the accepting side; raises as ``offer_transport``."""
    channel.set_timeout(ANSWER_S)
    choice = _choose(_receive(channel, TransportOffer), allowed_kinds(option, device), device_name(device))
    channel.send(_ENCODER.encode(choice))
    if choice.error:
        raise NoCommonTransportError(choice.error)
    # Never abandoned: the upstream that could hang up is the neighbour itself.
    return _build(choice.kind, channel, device, RECEIVER, lambda: False)


def _receive(channel: Channel, kind: type[_Message]) -> _Message:
    try:
        return msgspec.msgpack.decode(channel.receive(), type=kind)
    except msgspec.DecodeError as error:
        raise EOFError(f"the neighbour sent a malformed {kind.__name__}: {error}") from error


def _choose(offer: TransportOffer, mine: tuple[str, ...], device: str) -> TransportChoice:
    common = [kind for kind in offer.kinds if kind in mine]
    if NCCL in common and offer.device == device:
        common.remove(NCCL)
        if not common:
            return TransportChoice(
                "", f"transport is nccl, but two stages share the device {device}; give each a GPU of its own"
            )
    if not common:
        return TransportChoice(
            "", f"transport offers {', '.join(offer.kinds)} on one stage and {', '.join(mine)} on the next"
        )
    return TransportChoice(common[0])


def _build(kind: str, channel: Channel, device: torch.device, rank: int, is_abandoned: Callable[[], bool]) -> Transport:
    channel.set_timeout(None)
    if kind == NCCL:
        return NcclTransport(channel, device, rank, is_abandoned)
    if kind == GLOO:
        return GlooTransport(channel, device, rank)
    return SocketTransport(channel, device)
