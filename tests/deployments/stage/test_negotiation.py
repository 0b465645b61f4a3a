"""Which link two neighbours agree on, and what they say to each other until then."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
import torch

from deployments.stage.links import negotiation
from deployments.stage.links.channel_store import ChannelStore
from deployments.stage.links.negotiation import Choice, NoCommonLinkError, Offer, accept_link, kinds_of, offer_link
from deployments.stage.links.process_group import build_within
from tests.support.link_peers import CPU, Peers, received

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
def test_a_head_that_is_none_makes_no_room(head: Any, peers: Peers) -> None:
    sender, receiver = peers.links()
    sender.send(msgspec.msgpack.encode([head]), [])
    with pytest.raises((EOFError, msgspec.ValidationError)):
        received(receiver)


@pytest.mark.parametrize("said", [b"", b"\xff", b"nonsense", msgspec.msgpack.encode([7])], ids=repr)
def test_what_is_no_offer_choice_or_key_ends_the_connection(said: bytes, peers: Peers) -> None:
    for build in (
        lambda channel: offer_link(channel, "auto", CPU),
        lambda channel: accept_link(channel, "auto", CPU),
        lambda channel: ChannelStore(channel, 5).get("0/1"),
    ):
        connected, accepted = peers.channels()
        accepted.send(said)
        with pytest.raises(EOFError):
            build(connected)


def test_a_choice_that_was_not_offered_is_refused(peers: Peers) -> None:
    connected, accepted = peers.channels()
    accepted.send(msgspec.msgpack.encode(Choice("nccl")))
    with pytest.raises(EOFError, match="not offered"):
        offer_link(connected, "auto", CPU)


def test_neighbours_without_a_common_link_both_hear_why(peers: Peers) -> None:
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


def test_transport_says_which_links_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [kinds_of(transport, CPU) for transport in ("auto", "unix", "tcp")] == [("socket",)] * 3
    assert kinds_of("gloo", CPU) == ("gloo",)
    assert kinds_of("nccl", CPU) == ("nccl",)
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    assert kinds_of("auto", torch.device("cuda")) == ("nccl", "socket")
    assert kinds_of("unix", torch.device("cuda")) == ("socket",)


def test_a_store_of_two_gives_what_either_has_set(peers: Peers) -> None:
    one, other = (ChannelStore(channel, 20) for channel in peers.channels())
    one.set("a", b"\x00\xff")
    other.set("b", "text")
    assert not one.check(["b"])
    assert other.get("a") == b"\x00\xff"
    with ThreadPoolExecutor() as threads:
        finished = threads.submit(one.finish)
        other.finish()
        finished.result()
    assert one.get("b") == b"text"
    other.set("late", b"")  # by a thread of a library: nothing is sent, and no frame is in the way
    with pytest.raises(EOFError, match="over"):
        one.get("late")
    other._channel.send(b"frame")
    assert one._channel.receive() == b"frame"


def test_a_link_that_is_no_longer_wanted_is_not_built_to_the_end() -> None:
    going, stop = threading.Event(), threading.Event()

    def build() -> None:
        going.set()
        stop.wait(240)

    with pytest.raises(EOFError, match="no longer wanted"):
        build_within(600.0, build, going.is_set)
    with pytest.raises(EOFError, match="no communicator within 0 seconds"):
        build_within(0.05, build, lambda: False)
    stop.set()


def test_what_fails_while_a_link_is_built_is_raised_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        build_within(60.0, lambda: [1 // 0][0] and None, lambda: False)
    build_within(60.0, lambda: None, lambda: False)
