"""Silent peers and a lack of threads cost connections, never the acceptor of a stage."""

from __future__ import annotations

import contextlib
import queue
import socket
import tempfile
import threading
from collections.abc import Iterator

import pytest

from deployments.transport import acceptor as acceptor_module
from deployments.transport.acceptor import Acceptor
from deployments.transport.addresses import parse
from deployments.transport.channel import Channel
from deployments.transport.encryption import tls_context
from deployments.transport.handshake import NONCE
from deployments.transport.roles import STAGE_ROLES
from tests.support.listeners import SECRET
from tests.support.waiting import LIMIT_S, wait_until


@pytest.fixture
def taken() -> queue.Queue[Channel]:
    return queue.Queue()


@pytest.fixture
def acceptor(taken: queue.Queue[Channel]) -> Iterator[Acceptor]:
    with tempfile.TemporaryDirectory(prefix="re-") as folder:
        made = Acceptor([f"unix:{folder}/s", "tcp:127.0.0.1:0"], SECRET, STAGE_ROLES, taken.put)
        yield made
        made.close()


def silent(address: str) -> socket.socket:
    """A peer that connects and sends nothing."""
    family, where = parse(address)
    peer = socket.socket(family, socket.SOCK_STREAM)
    peer.connect(where)
    return peer


def role_of(taken: queue.Queue[Channel]) -> str:
    channel = taken.get(timeout=LIMIT_S)
    channel.close()
    return channel.role


def test_too_many_silent_peers_of_one_address_keep_no_peer_of_another_out(
    acceptor: Acceptor, taken: queue.Queue[Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor_module, "MAX_STRANGERS", 2)
    acceptor.start()
    unix, tcp = acceptor.addresses
    peers = [tls_context(SECRET, False).wrap_socket(silent(tcp)) for _ in range(2)]
    assert [len(peer.recv(NONCE)) for peer in peers] == [NONCE, NONCE]
    with silent(tcp) as refused:
        assert refused.recv(1) == b""
    Channel.connect(unix, SECRET, "steps").close()
    assert role_of(taken) == "steps"
    peers[0].close()

    def connected() -> Channel | None:
        with contextlib.suppress(EOFError, OSError):
            return Channel.connect(tcp, SECRET, "stage")
        return None

    wait_until(connected).close()  # type: ignore[union-attr]  # once its thread has noticed
    assert role_of(taken) == "stage"
    peers[1].close()


def test_a_lack_of_threads_costs_one_connection(
    acceptor: Acceptor, taken: queue.Queue[Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    acceptor.start()
    start, failures = threading.Thread.start, [RuntimeError("can't start new thread")]

    def scarce(thread: threading.Thread) -> None:
        if thread.name == "stage-welcome" and failures:
            raise failures.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    with silent(acceptor.addresses[0]) as refused:
        assert refused.recv(1) == b""
    for address in acceptor.addresses:
        Channel.connect(address, SECRET, "steps").close()
        assert role_of(taken) == "steps"
    assert not failures
