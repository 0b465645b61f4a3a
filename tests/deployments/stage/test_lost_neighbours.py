"""A neighbour that dies, is silent or too slow is noticed, and costs the link only."""

from __future__ import annotations

import threading

import msgspec
import pytest

from deployments.pipeline.tensor_header import TensorHeader
from deployments.stage.links import negotiation, process_group
from deployments.stage.links.negotiation import Choice, accept_link, offer_link
from deployments.stage.links.watchdog import Watchdog
from tests.support.link_peers import CPU, Peers, received
from tests.support.waiting import LIMIT_S


@pytest.mark.parametrize("how", ["closed", "slow"])
def test_a_wait_for_a_device_ends_when_the_neighbour_is_lost(how: str, peers: Peers) -> None:
    connected, accepted = peers.channels()
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
    sender, receiver = peers.links("gloo")
    monkeypatch.setattr(process_group, "WAIT_S", 0.2)
    sender.send(msgspec.msgpack.encode([TensorHeader("float32", (10,))]), [])
    with pytest.raises(EOFError, match="did not come"):
        received(receiver)
    monkeypatch.setattr(negotiation, "ANSWER_S", 0.05)
    for build in (offer_link, accept_link):
        with pytest.raises(TimeoutError):
            build(peers.channels()[0], "gloo", CPU)
    connected, accepted = peers.channels()
    monkeypatch.setattr(negotiation, "ANSWER_S", LIMIT_S)
    accepted.send(msgspec.msgpack.encode(Choice("gloo")))
    with pytest.raises((EOFError, TimeoutError)):  # it chose, and builds nothing
        offer_link(connected, "gloo", CPU)
