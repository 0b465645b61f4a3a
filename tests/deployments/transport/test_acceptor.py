"""The acceptor of a stage: strangers and a lack of threads cost connections, never the acceptor."""

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

SECRET = b"s" * 32


@pytest.fixture
def taken() -> queue.Queue[Channel]:
    return queue.Queue()


@pytest.fixture
def acceptor(taken: queue.Queue[Channel]) -> Iterator[Acceptor]:
    with tempfile.TemporaryDirectory(prefix="re-") as folder:
        made = Acceptor([f"unix:{folder}/s", "tcp:127.0.0.1:0"], SECRET, STAGE_ROLES, taken.put)
        yield made
        made.close()
        while not taken.empty():
            taken.get().close()


def stranger(address: str) -> socket.socket:
    """Connects and says nothing."""
    family, where = parse(address)
    peer = socket.socket(family, socket.SOCK_STREAM)
    peer.settimeout(10)
    peer.connect(where)
    return peer


def role_of(taken: queue.Queue[Channel]) -> str:
    channel = taken.get(timeout=10)
    channel.close()
    return channel.role


def test_strangers_are_counted_and_one_too_many_is_closed_at_once(
    acceptor: Acceptor, taken: queue.Queue[Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor_module, "MAX_STRANGERS", 2)
    monkeypatch.setattr("deployments.transport.channel.HANDSHAKE_S", 600.0)  # no stranger goes by itself
    acceptor.start()
    unix, tcp = acceptor.addresses
    silent = [tls_context(SECRET, False).wrap_socket(stranger(tcp)) for _ in range(2)]
    assert [len(peer.recv(NONCE)) for peer in silent] == [NONCE, NONCE]
    with stranger(tcp) as refused:
        assert refused.recv(1) == b""
    Channel.connect(unix, SECRET, "steps").close()  # neighbours of this node do not suffer
    assert role_of(taken) == "steps"
    silent[0].close()
    connected = None
    for _ in range(200):  # until its thread has noticed
        with contextlib.suppress(EOFError, OSError):
            connected = Channel.connect(tcp, SECRET, "stage")
            break
        threading.Event().wait(0.02)
    assert connected is not None
    assert role_of(taken) == "stage"
    connected.close()
    silent[1].close()


def test_a_lack_of_threads_costs_one_connection_only(
    acceptor: Acceptor, taken: queue.Queue[Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    acceptor.start()
    start, failures = threading.Thread.start, [RuntimeError("can't start new thread")]

    def scarce(thread: threading.Thread) -> None:
        if thread.name == "stage-welcome" and failures:
            raise failures.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    for address in acceptor.addresses:
        if not taken.qsize() and failures:
            with stranger(address) as refused:
                assert refused.recv(1) == b""
        Channel.connect(address, SECRET, "steps").close()
        assert role_of(taken) == "steps"
    assert not failures
