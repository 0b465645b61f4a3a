"""Two neighbouring stages agree on a kind of link; malformed messages end the connection."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from deployments.stage.links import negotiation
from deployments.stage.links.channel_store import ChannelStore
from deployments.stage.links.negotiation import Choice, NoCommonLinkError, Offer, accept_link, offer_link
from deployments.stage.links.process_group import build_within
from tests.support.link_peers import CPU, Peers, received
from tests.support.waiting import LIMIT_S

BAD_HEADS = [
    ["float64", [1]],
    ["float32", [-1]],
    ["float32", [1.5]],
    ["float32", [1 << 29]],  # two GiB
    ["float32", [1 << 20, 1 << 20, 1 << 20]],
    ["float32", [1 << 62]],
    ["float32", [1] * 5],
    ["float32", "all"],
    ["float32"],
    [b"\x80\x04.", [1]],
    None,
]


@pytest.mark.parametrize("head", BAD_HEADS, ids=repr)
def test_a_malformed_tensor_header_allocates_nothing(head: Any, peers: Peers) -> None:
    sender, receiver = peers.links()
    sender.send(msgspec.msgpack.encode([head]), [])
    with pytest.raises((EOFError, msgspec.ValidationError)):
        received(receiver)


def test_a_malformed_offer_choice_or_key_ends_the_connection(peers: Peers) -> None:
    for sent in (b"", b"\xff", b"nonsense", msgspec.msgpack.encode([7]), msgspec.msgpack.encode(Choice("nccl"))):
        for build in (
            lambda channel: offer_link(channel, "auto", CPU),
            lambda channel: accept_link(channel, "auto", CPU),
            lambda channel: ChannelStore(channel, LIMIT_S).get("0/1"),
        ):
            connected, accepted = peers.channels()
            accepted.send(sent)
            with pytest.raises(EOFError):
                build(connected)


def test_neighbours_without_a_common_link_both_get_the_reason(peers: Peers) -> None:
    connected, accepted = peers.channels()
    with ThreadPoolExecutor() as threads:
        offered = threads.submit(offer_link, connected, "gloo", CPU)
        with pytest.raises(NoCommonLinkError, match="transport offers gloo on one stage and socket on the next"):
            accept_link(accepted, "tcp", CPU)
        with pytest.raises(NoCommonLinkError, match="transport offers gloo"):
            offered.result()


def test_stages_on_one_gpu_do_not_use_nccl() -> None:
    mine = ("nccl", "socket")
    assert negotiation._choose(Offer(mine, "GPU-1"), mine, "GPU-2") == Choice("nccl")
    assert negotiation._choose(Offer(mine, "GPU-1"), mine, "GPU-1") == Choice("socket")
    assert "share the device GPU-1" in negotiation._choose(Offer(("nccl",), "GPU-1"), mine, "GPU-1").error


def test_two_neighbours_share_a_store_until_it_is_finished(peers: Peers) -> None:
    one, other = (ChannelStore(channel, LIMIT_S) for channel in peers.channels())
    one.set("a", b"\x00\xff")
    other.set("b", "text")
    assert not one.check(["b"])
    assert other.get("a") == b"\x00\xff"
    with ThreadPoolExecutor() as threads:
        finished = threads.submit(one.finish)
        other.finish()
        finished.result()
    assert one.get("b") == b"text"
    other.set("late", b"")  # by a thread of a library: nothing is sent
    with pytest.raises(EOFError, match="over"):
        one.get("late")
    other._channel.send(b"frame")
    assert one._channel.receive() == b"frame"


def test_building_a_link_ends_when_it_is_abandoned_overdue_or_fails() -> None:
    going, stop = threading.Event(), threading.Event()

    def build() -> None:
        going.set()
        stop.wait(LIMIT_S)

    with pytest.raises(EOFError, match="no longer wanted"):
        build_within(LIMIT_S, build, going.is_set)
    with pytest.raises(EOFError, match="no communicator within 0 seconds"):
        build_within(0.05, build, lambda: False)
    stop.set()
    with pytest.raises(ZeroDivisionError):
        build_within(LIMIT_S, lambda: [1 // 0][0] and None, lambda: False)
    build_within(LIMIT_S, lambda: None, lambda: False)
