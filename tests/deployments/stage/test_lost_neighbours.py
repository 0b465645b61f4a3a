"""A neighbour that dies, says nothing or dawdles costs the link only, and is noticed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from deployments.pipeline.tensor_header import TensorHeader
from deployments.stage.links import negotiation, process_group
from deployments.stage.links.negotiation import Choice, accept_link, offer_link
from deployments.stage.links.watchdog import Watchdog
from tests.support.link_peers import CPU, KINDS, LARGE, Peers, deliver, received, same

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


@pytest.mark.parametrize("how", ["killed", "slow"])
def test_what_waits_for_a_device_is_ended_when_the_neighbour_is_lost(how: str, peers: Peers) -> None:
    connected, accepted = peers.channels()
    transfer = threading.Event()  # as CUDA's: its wait hears of no channel
    watchdog = Watchdog(accepted, transfer.set)
    transfer.set()
    with watchdog.limit(60.0):
        assert transfer.wait(240)
    transfer.clear()
    if how == "killed":
        threading.Timer(0.05, connected.close).start()
    with pytest.raises(EOFError, match="did not come"), watchdog.limit(500.0 if how == "killed" else 0.05):
        assert transfer.wait(240)
    with pytest.raises(EOFError), watchdog.limit(60.0):  # what the neighbour sent is not believed any more
        assert transfer.wait(240)


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
    assert lost.wait(120)


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
