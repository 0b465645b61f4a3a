"""Transports between neighbouring stages: agreed on, in order, and ended when a neighbour is lost or malformed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from deployments.pipeline.frames import TensorHeader
from deployments.stage.transports import negotiation, process_group
from deployments.stage.transports.channel_store import ChannelStore
from deployments.stage.transports.negotiation import (
    NoCommonTransportError,
    TransportChoice,
    TransportOffer,
    accept_transport,
    offer_transport,
)
from deployments.stage.transports.threads import Watchdog
from engine.parallel.exchanges import build_within
from tests.deployments.stage.transport_peers import CPU, KINDS, LARGE, Peers, deliver, received, same
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
    sender, receiver = peers.transports()
    sender.send(msgspec.msgpack.encode([head]), [])
    with pytest.raises((EOFError, msgspec.ValidationError)):
        received(receiver)


def test_a_malformed_offer_choice_or_key_ends_the_connection(peers: Peers) -> None:
    for sent in (
        b"",
        b"\xff",
        b"nonsense",
        msgspec.msgpack.encode([7]),
        msgspec.msgpack.encode(TransportChoice("nccl")),
    ):
        for build in (
            lambda channel: offer_transport(channel, "auto", CPU),
            lambda channel: accept_transport(channel, "auto", CPU),
            lambda channel: ChannelStore(channel, LIMIT_S).get("0/1"),
        ):
            connected, accepted = peers.pair("stage")
            accepted.send(sent)
            with pytest.raises(EOFError):
                build(connected)


def test_neighbours_without_a_common_link_both_get_the_reason(peers: Peers) -> None:
    connected, accepted = peers.pair("stage")
    with ThreadPoolExecutor() as threads:
        offered = threads.submit(offer_transport, connected, "gloo", CPU)
        with pytest.raises(NoCommonTransportError, match="transport offers gloo on one stage and socket on the next"):
            accept_transport(accepted, "tcp", CPU)
        with pytest.raises(NoCommonTransportError, match="transport offers gloo"):
            offered.result()


def test_stages_on_one_gpu_do_not_use_nccl() -> None:
    mine = ("nccl", "socket")
    assert negotiation._choose(TransportOffer(mine, "GPU-1"), mine, "GPU-2") == TransportChoice("nccl")
    assert negotiation._choose(TransportOffer(mine, "GPU-1"), mine, "GPU-1") == TransportChoice("socket")
    assert "share the device GPU-1" in negotiation._choose(TransportOffer(("nccl",), "GPU-1"), mine, "GPU-1").error


def test_two_neighbours_share_a_store_until_it_is_finished(peers: Peers) -> None:
    one, other = (ChannelStore(channel, LIMIT_S) for channel in peers.pair("stage"))
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

    with pytest.raises(EOFError, match="no longer needed"):
        build_within(LIMIT_S, build, going.is_set)
    with pytest.raises(EOFError, match="no process group was built within 0 seconds"):
        build_within(0.05, build, lambda: False)
    stop.set()
    with pytest.raises(ZeroDivisionError):
        build_within(LIMIT_S, lambda: [1 // 0][0] and None, lambda: False)
    build_within(LIMIT_S, lambda: None, lambda: False)


@pytest.mark.parametrize(
    ("kind", "peers"), [("socket", "unix"), ("socket", "tcp6"), ("gloo", "unix"), ("gloo", "tcp")], indirect=["peers"]
)
def test_tensors_of_every_dtype_and_size_arrive_unchanged(kind: str, peers: Peers) -> None:
    sender, receiver = peers.transports(KINDS[kind])
    assert (sender.kind, receiver.kind) == (kind, kind)
    frames: list[list[Tensor]] = [
        *([torch.randn(1, 7, 33).to(dtype)] for dtype in (torch.float32, torch.bfloat16, torch.float16)),
        [],
        [torch.empty(1, 0, 32), torch.randn(1, 3, 32, dtype=torch.float16)],
        [torch.empty(0, dtype=torch.bfloat16)],
        [torch.randn(1, 6, 64).transpose(1, 2), torch.randn(2, 8)[:, ::2]],  # not contiguous
        [torch.randn(LARGE // 4), torch.randn(5)],
        [torch.full((1, 1, 1), float("nan")).view(torch.float32).nan_to_num(3.0)],
    ]
    for tensors in frames:
        deliver(sender, tensors)
    for tensors in frames:
        assert same(received(receiver), tensors)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sender_does_not_wait_for_a_neighbour_that_computes(kind: str, peers: Peers) -> None:
    sender, receiver = peers.transports(KINDS[kind])
    frames = [[torch.full((LARGE // 4,), float(i)), torch.full((3,), float(i))] for i in range(4)]
    for tensors in frames:  # no thread reads yet: a send that waited would wait for ever
        deliver(sender, tensors)
    assert all(same(received(receiver), tensors) for tensors in frames)


@pytest.mark.parametrize("kind", KINDS)
def test_frames_are_sent_in_order_once_their_computation_is_done(kind: str, peers: Peers) -> None:
    sender, receiver = peers.transports(KINDS[kind])
    over, arrived = threading.Event(), threading.Event()
    late, small = torch.zeros(1000), torch.arange(3.0)
    header = bytearray(msgspec.msgpack.encode([TensorHeader.of(late)]))
    seen: list[list[Tensor]] = []

    def ready() -> None:
        assert over.wait(LIMIT_S)
        late.fill_(7.0)

    def read() -> None:
        seen.extend(received(receiver) for _ in range(3))
        arrived.set()

    deliver(sender, [small])
    sender.send(header, [late], ready)
    deliver(sender, [small + 1])  # computed already, and sent after it nevertheless
    reader = threading.Thread(target=read)
    reader.start()
    assert not arrived.wait(0.05)
    over.set()
    assert arrived.wait(LIMIT_S)
    reader.join()
    assert [tensors[0][0].item() for tensors in seen] == [0.0, 7.0, 1.0]
    assert same(seen[1], [torch.full((1000,), 7.0)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_computation_or_a_closed_neighbour_ends_its_link_only(kind: str, peers: Peers) -> None:
    sender, receiver = peers.transports(KINDS[kind])
    sender.send(bytearray(b"never"), [torch.zeros(3)], lambda: [1 // 0][0] and None)
    with pytest.raises((EOFError, OSError)):
        receiver.header()
    with pytest.raises(EOFError, match="could not be sent"):
        deliver(sender, [torch.zeros(8 << 20)])
    closed, waiting = peers.transports(KINDS[kind])
    with ThreadPoolExecutor() as threads:
        tensors = threads.submit(received, waiting)
        closed.close()
        assert isinstance(tensors.exception(LIMIT_S), EOFError | OSError)
    again, fresh = peers.transports(KINDS[kind])  # this process can build another transport
    deliver(again, [torch.ones(3)])
    assert same(received(fresh), [torch.ones(3)])


@pytest.mark.parametrize("how", ["closed", "slow"])
def test_a_wait_for_a_device_ends_when_the_neighbour_is_lost(how: str, peers: Peers) -> None:
    connected, accepted = peers.pair("stage")
    transfer = threading.Event()  # like CUDA's: its wait does not notice a lost channel
    watchdog = Watchdog(accepted, transfer.set)
    transfer.set()
    with watchdog.limit(LIMIT_S):
        assert transfer.wait(LIMIT_S)
    transfer.clear()
    if how == "closed":
        threading.Timer(0.05, connected.close).start()
    with pytest.raises(EOFError, match="did not come"), watchdog.limit(10 * LIMIT_S if how == "closed" else 0.05):
        assert transfer.wait(LIMIT_S)
    with pytest.raises(EOFError), watchdog.limit(LIMIT_S):  # nothing of that neighbour counts any more
        assert transfer.wait(LIMIT_S)


def test_a_neighbour_that_never_answers_or_sends_is_given_up(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    sender, receiver = peers.transports("gloo")
    monkeypatch.setattr(process_group, "WAIT_S", 0.2)
    sender.send(msgspec.msgpack.encode([TensorHeader("float32", (10,))]), [])
    with pytest.raises(EOFError, match="did not come"):
        received(receiver)
    monkeypatch.setattr(negotiation, "ANSWER_S", 0.05)
    for build in (offer_transport, accept_transport):
        with pytest.raises(TimeoutError):
            build(peers.pair("stage")[0], "gloo", CPU)
    connected, accepted = peers.pair("stage")
    monkeypatch.setattr(negotiation, "ANSWER_S", LIMIT_S)
    accepted.send(msgspec.msgpack.encode(TransportChoice("gloo")))
    with pytest.raises((EOFError, TimeoutError)):  # it chose, and builds nothing
        offer_transport(connected, "gloo", CPU)
