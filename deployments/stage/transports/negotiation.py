"""Negotiates the link of two neighbours: the stage that connects offers kinds of links, the other chooses one."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import torch
import torch.distributed as dist

from deployments.channels.channel import Channel
from deployments.stage.transports.base import RECEIVER, SENDER, Link
from deployments.stage.transports.process_group import GlooLink, NcclLink
from deployments.stage.transports.sockets import SocketLink

ANSWER_S = 10.0  # seconds for an offer, and for its answer
SOCKET, GLOO, NCCL = "socket", "gloo", "nccl"


class NoCommonLinkError(EOFError):
    """Two neighbours have no kind of link in common: the option ``transport`` does not fit their devices."""


class LinkOffer(msgspec.Struct, frozen=True, array_like=True):
    """Sent by the stage that connects."""

    kinds: tuple[str, ...]  # best first
    device: str  # as ``identity`` writes it


class LinkChoice(msgspec.Struct, frozen=True, array_like=True):
    """Sent by the stage that accepts."""

    kind: str  # "": none in common
    error: str = ""  # why


_ENCODER = msgspec.msgpack.Encoder()
_OFFER, _CHOICE = msgspec.msgpack.Decoder(LinkOffer), msgspec.msgpack.Decoder(LinkChoice)


def kinds_of(transport: str, device: torch.device) -> tuple[str, ...]:
    """Links that the option ``transport`` allows a stage on ``device``, best first."""
    if transport in (GLOO, NCCL):
        return (transport,)
    if transport == "auto" and device.type == "cuda" and dist.is_available() and dist.is_nccl_available():
        return (NCCL, SOCKET)
    return (SOCKET,)


def identity(device: torch.device) -> str:
    """A name that two stages share if and only if they compute on the same device."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else device.type


def offer_link(
    channel: Channel, transport: str, device: torch.device, is_abandoned: Callable[[], bool] = lambda: False
) -> Link:
    """The connecting side; building ends at once when ``is_abandoned`` says that the link is no longer wanted.

    Raises:
        NoCommonLinkError: the neighbours have no kind of link in common.
        EOFError, OSError: the neighbour is gone, or too slow.
    """
    channel.set_timeout(ANSWER_S)
    kinds = kinds_of(transport, device)
    channel.send(_ENCODER.encode(LinkOffer(kinds, identity(device))))
    try:
        choice = _CHOICE.decode(channel.receive())
    except msgspec.DecodeError as error:
        raise EOFError(f"the neighbour sent a malformed choice of a link: {error}") from error
    if choice.error:
        raise NoCommonLinkError(choice.error)
    if choice.kind not in kinds:
        raise EOFError(f"the neighbour chose a link {choice.kind!r} that was not offered")
    return _link(choice.kind, channel, device, SENDER, is_abandoned)


def accept_link(channel: Channel, transport: str, device: torch.device) -> Link:
    """The accepting side; raises like ``offer_link``."""
    channel.set_timeout(ANSWER_S)
    try:
        offer = _OFFER.decode(channel.receive())
    except msgspec.DecodeError as error:
        raise EOFError(f"the neighbour sent a malformed offer of links: {error}") from error
    choice = _choose(offer, kinds_of(transport, device), identity(device))
    channel.send(_ENCODER.encode(choice))
    if choice.error:
        raise NoCommonLinkError(choice.error)
    # Never abandoned: the upstream that could hang up is the neighbour itself.
    return _link(choice.kind, channel, device, RECEIVER, lambda: False)


def _choose(offer: LinkOffer, mine: tuple[str, ...], device: str) -> LinkChoice:
    common = [kind for kind in offer.kinds if kind in mine]
    if NCCL in common and offer.device == device:
        common.remove(NCCL)
        if not common:
            return LinkChoice(
                "", f"transport is nccl, but two stages share the device {device}; give each a GPU of its own"
            )
    if not common:
        return LinkChoice(
            "", f"transport offers {', '.join(offer.kinds)} on one stage and {', '.join(mine)} on the next"
        )
    return LinkChoice(common[0])


def _link(kind: str, channel: Channel, device: torch.device, rank: int, is_abandoned: Callable[[], bool]) -> Link:
    channel.set_timeout(None)
    if kind == NCCL:
        return NcclLink(channel, device, rank, is_abandoned)
    if kind == GLOO:
        return GlooLink(channel, device, rank)
    return SocketLink(channel, device)
