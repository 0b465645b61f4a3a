"""Links between neighbours: tensors arrive as they were; a neighbour that dies, lies or dawdles costs the link only."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from deployments.pipeline.tensor_header import TensorHeader
from deployments.stage.links import negotiation, process_group
from deployments.stage.links.base import Link
from deployments.stage.links.channel_store import ChannelStore
from deployments.stage.links.negotiation import Choice, NoCommonLinkError, Offer, accept_link, kinds_of, offer_link
from deployments.stage.links.process_group import build_within
from deployments.stage.links.watchdog import Watchdog
from deployments.transport.addresses import listen
from deployments.transport.channel import Channel

SECRET = b"s" * 32
CPU = torch.device("cpu")
KINDS = {"socket": "auto", "gloo": "gloo"}  # what ``transport`` asks for
LARGE = 8 << 20  # bytes: more than any socket buffer here holds


class Peers:
    """Channels from one to the other, and threads that build links on both ends at once."""

    def __init__(self, address: str) -> None:
        self._server, self.address = listen(address)
        self._threads = ThreadPoolExecutor(2)
        self._open: list[Any] = []

    def accept(self) -> Channel:
        taken: list[Channel] = []
        Channel.accept(self._server.accept()[0], SECRET, ["stage"], taken.append)
        self._open += taken
        return taken[0]

    def channels(self) -> tuple[Channel, Channel]:
        accepted = self._threads.submit(self.accept)
        connected = Channel.connect(self.address, SECRET, "stage")
        self._open.append(connected)
        return connected, accepted.result()

    def links(self, transport: str = "auto", other: str | None = None) -> tuple[Link, Link]:
        connected, accepted = self.channels()
        offered = self._threads.submit(offer_link, connected, transport, CPU)
        receiver = accept_link(accepted, other or transport, CPU)
        self._open += [receiver, offered.result()]
        return offered.result(), receiver

    def close(self) -> None:
        for one in self._open:
            one.close()
        self._server.close()
        self._threads.shutdown()


@pytest.fixture(params=["unix", "tcp"])
def peers(request: pytest.FixtureRequest) -> Iterator[Peers]:
    with tempfile.TemporaryDirectory(prefix="ln-") as folder:
        made = Peers(f"unix:{folder}/s" if request.param == "unix" else "tcp:127.0.0.1:0")
        yield made
        made.close()


def received(link: Link) -> tuple[bytes, list[Tensor]]:
    """A frame whose header is made of its tensors' heads, as ``deliver`` writes it."""
    header = link.header()
    return header, link.tensors(msgspec.msgpack.decode(header, type=list[TensorHeader]))


def deliver(link: Link, tensors: list[Tensor]) -> None:
    link.send(msgspec.msgpack.encode([TensorHeader.of(tensor) for tensor in tensors]), tensors)


def same(found: list[Tensor], wanted: list[Tensor]) -> bool:
    pairs = list(zip(found, wanted, strict=True))
    return all(a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_every_dtype_and_size_arrive_as_they_were(kind: str, peers: Peers) -> None:
    sender, receiver = peers.links(KINDS[kind])
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
        assert same(received(receiver)[1], tensors)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sender_does_not_wait_for_a_neighbour_that_computes(kind: str, peers: Peers) -> None:
    sender, receiver = peers.links(KINDS[kind])
    frames = [[torch.full((LARGE // 4,), float(i)), torch.full((3,), float(i))] for i in range(4)]
    for tensors in frames:  # no thread reads yet: a send that waited would wait for ever
        deliver(sender, tensors)
    assert all(same(received(receiver)[1], tensors) for tensors in frames)


@pytest.mark.parametrize("kind", KINDS)
def test_frames_leave_in_order_when_what_computes_them_is_over(kind: str, peers: Peers) -> None:
    sender, receiver = peers.links(KINDS[kind])
    over, arrived = threading.Event(), threading.Event()
    late, small = torch.zeros(1000), torch.arange(3.0)
    header = bytearray(msgspec.msgpack.encode([TensorHeader.of(late)]))
    seen: list[tuple[bytes, list[Tensor]]] = []

    def ready() -> None:
        assert over.wait(60)
        late.fill_(7.0)

    def read() -> None:
        seen.extend(received(receiver) for _ in range(3))
        arrived.set()

    deliver(sender, [small])
    sender.send(header, [late], ready)
    deliver(sender, [small + 1])  # true already, and behind it nevertheless
    reader = threading.Thread(target=read)
    reader.start()
    assert not arrived.wait(0.1)
    over.set()
    assert arrived.wait(60)
    reader.join()
    assert [tensors[0][0].item() for _, tensors in seen] == [0.0, 7.0, 1.0]
    assert same(seen[1][1], [torch.full((1000,), 7.0)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_computation_that_fails_costs_the_link(kind: str, peers: Peers) -> None:
    sender, receiver = peers.links(KINDS[kind])
    sender.send(bytearray(b"never"), [torch.zeros(3)], lambda: [1 // 0][0] and None)
    with pytest.raises((EOFError, OSError)):
        receiver.header()
    with pytest.raises(EOFError, match="could not be sent"):
        deliver(sender, [torch.zeros(8 << 20)])


@pytest.mark.parametrize("how", ["killed", "slow"])
def test_what_waits_for_a_device_is_ended_when_the_neighbour_is_lost(how: str, peers: Peers) -> None:
    connected, accepted = peers.channels()
    transfer = threading.Event()  # as CUDA's: its wait hears of no channel
    watchdog = Watchdog(accepted, transfer.set)
    transfer.set()
    with watchdog.limit(60.0):
        assert transfer.wait(60)
    transfer.clear()
    if how == "killed":
        threading.Timer(0.05, connected.close).start()
    with pytest.raises(EOFError, match="did not come"), watchdog.limit(500.0 if how == "killed" else 0.05):
        assert transfer.wait(60)
    with pytest.raises(EOFError), watchdog.limit(60.0):  # what the neighbour sent is not believed any more
        assert transfer.wait(60)


@pytest.mark.parametrize("kind", KINDS)
def test_links_are_independent_of_each_other_within_a_process(kind: str, peers: Peers) -> None:
    first, second = peers.links(KINDS[kind]), peers.links(KINDS[kind])
    first[0].close()
    with pytest.raises((EOFError, OSError)):
        received(first[1])
    third = peers.links(KINDS[kind])
    for sender, receiver in (second, third):
        deliver(sender, [torch.ones(1000)])
        assert same(received(receiver)[1], [torch.ones(1000)])


NEIGHBOUR = """
import sys, time, torch, msgspec
from deployments.transport.channel import Channel
from deployments.pipeline.tensor_header import TensorHeader
from deployments.stage.links.negotiation import offer_link, accept_link
side, address, transport = sys.argv[1:]
channel = Channel.connect(address, b"s" * 32, "stage")
if side == "sender":
    link = offer_link(channel, transport, torch.device("cpu"))
    tensor = torch.ones(1 << 21)
    link.send(msgspec.msgpack.encode([TensorHeader.of(tensor)]), [tensor])
    link.send(msgspec.msgpack.encode([TensorHeader.of(tensor)]), [])  # announced, and never sent
else:
    link = accept_link(channel, transport, torch.device("cpu"))
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def neighbour() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A stage's link in a process of its own, that can be killed."""
    started: list[subprocess.Popen[str]] = []

    def start(side: str, address: str, transport: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", NEIGHBOUR, side, address, transport]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No deadline helps: a test that passes has heard of the loss itself."""
    monkeypatch.setattr(process_group, "WAIT_S", 500.0)
    monkeypatch.setattr(negotiation, "ANSWER_S", 500.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", KINDS)
def test_a_neighbour_that_is_killed_wakes_who_waits_for_its_tensors(
    kind: str, peers: Peers, neighbour: Callable[..., subprocess.Popen[str]]
) -> None:
    process = neighbour("sender", peers.address, KINDS[kind])
    receiver = accept_link(peers.accept(), KINDS[kind], CPU)
    assert same(received(receiver)[1], [torch.ones(1 << 21)])
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    threading.Timer(0.3, process.kill).start()  # while the receive is posted
    with pytest.raises((EOFError, OSError)):
        received(receiver)
    again, fresh = peers.links(KINDS[kind])  # and nothing of it sticks to this process
    deliver(again, [torch.ones(3)])
    assert same(received(fresh)[1], [torch.ones(3)])


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", KINDS)
def test_a_neighbour_that_is_killed_wakes_who_sends_to_it(
    kind: str, peers: Peers, neighbour: Callable[..., subprocess.Popen[str]]
) -> None:
    process = neighbour("receiver", peers.address, KINDS[kind])
    sender = offer_link(peers.accept(), KINDS[kind], CPU)
    deliver(sender, [torch.ones(LARGE)])  # it never reads
    process.kill()
    lost = threading.Event()

    def send() -> None:
        try:
            while True:
                deliver(sender, [torch.ones(8)])
        except (EOFError, OSError):
            lost.set()

    threading.Thread(target=send, daemon=True).start()
    assert lost.wait(30)


def test_tensors_that_are_announced_and_do_not_come_are_given_up(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    sender, receiver = peers.links("gloo")
    monkeypatch.setattr(process_group, "WAIT_S", 0.3)
    sender.send(msgspec.msgpack.encode([TensorHeader("float32", (10,))]), [])
    with pytest.raises(EOFError, match="did not come"):
        received(receiver)


def test_a_neighbour_that_says_nothing_is_given_up(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(negotiation, "ANSWER_S", 0.2)
    monkeypatch.setattr(process_group, "WAIT_S", 0.2)
    for build in (offer_link, accept_link):
        with pytest.raises(TimeoutError):
            build(peers.channels()[0], "gloo", CPU)
    connected, accepted = peers.channels()
    accepted.send(msgspec.msgpack.encode(Choice("gloo")))
    with pytest.raises((EOFError, TimeoutError)):  # it chose, and builds nothing
        offer_link(connected, "gloo", CPU)


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
        stop.wait(60)

    with pytest.raises(EOFError, match="no longer wanted"):
        build_within(600.0, build, going.is_set)
    with pytest.raises(EOFError, match="no communicator within 0 seconds"):
        build_within(0.05, build, lambda: False)
    stop.set()


def test_what_fails_while_a_link_is_built_is_raised_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        build_within(60.0, lambda: [1 // 0][0] and None, lambda: False)
    build_within(60.0, lambda: None, lambda: False)
