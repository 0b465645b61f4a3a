"""Peers that are silent or do not know the secret are turned away unheard, and keep no other peer out."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from deployments.channels import acceptor as acceptor_module
from deployments.channels import channel as channel_module
from deployments.channels.acceptor import Acceptor
from deployments.channels.addresses import parse
from deployments.channels.async_channel import AsyncChannel
from deployments.channels.channel import Channel
from deployments.channels.handshake import NONCE, PROOF, STAGE_ROLES, UnauthenticatedError
from deployments.channels.tls import tls_context
from engine.errors import TargetLostError
from tests.support.listeners import SECRET, Listener, exchange, hello
from tests.support.waiting import LIMIT_S, wait_until

WRONG = b"wrong" * 8


async def test_a_peer_with_the_wrong_secret_is_turned_away_and_the_right_one_served_next(listener: Listener) -> None:
    stranger = listener.raw()
    stranger.sendall(hello(stranger, WRONG) + struct.pack("<I", 4) + b"evil")
    assert "turned away" in listener.refusal()
    assert listener.accepted.empty()  # no channel exists that could have read the payload
    with contextlib.suppress(ConnectionResetError):  # its payload is still unread
        assert stranger.recv(PROOF) == b""  # nothing made with the secret
    stranger.close()
    with pytest.raises((UnauthenticatedError, EOFError)):
        await asyncio.to_thread(Channel.connect, listener.address, WRONG, "steps")
    with pytest.raises(TargetLostError):
        await AsyncChannel.connect(listener.address, WRONG, "steps")
    exchange(*listener.pair(), [b"right"])


def test_a_peer_that_breaks_off_in_the_handshake_harms_no_other(listener: Listener) -> None:
    for sent in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 20, b"x" * 1000):
        stranger = listener.raw()
        stranger.sendall(sent)
        stranger.close()
        assert listener.refusal()
        exchange(*listener.pair(), [b"right"])


class Trickling:
    """A connection whose peer sends a byte a second, by a clock of its own."""

    family = socket.AF_UNIX
    now = 0.0
    timeout = 0.0

    def monotonic(self) -> float:
        return self.now

    def settimeout(self, seconds: float) -> None:
        self.timeout = seconds

    def sendall(self, data: bytes) -> None:
        pass

    def recv(self, n: int) -> bytes:
        if self.timeout < 1.0:
            raise TimeoutError
        self.now += 1.0
        return b"x"

    def close(self) -> None:
        pass


def test_a_peer_that_trickles_has_no_more_time_than_a_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    connection: Any = Trickling()
    monkeypatch.setattr(channel_module, "time", connection)
    monkeypatch.setattr(channel_module, "HANDSHAKE_S", 10.0)
    with pytest.raises(UnauthenticatedError, match="broke off"):
        Channel.accept(connection, SECRET, ["steps"], pytest.fail)
    assert connection.now == 10.0


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
    peer.settimeout(LIMIT_S)
    peer.connect(where)
    return peer


def role_of(taken: queue.Queue[Channel]) -> str:
    channel = taken.get(timeout=LIMIT_S)
    channel.close()
    return channel.role


def test_too_many_silent_peers_of_one_address_keep_no_peer_of_another_out(
    acceptor: Acceptor, taken: queue.Queue[Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor_module, "MAX_UNAUTHENTICATED", 2)
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
        if thread.name == "stage-authenticate" and failures:
            raise failures.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    with silent(acceptor.addresses[0]) as refused:
        assert refused.recv(1) == b""
    for address in acceptor.addresses:
        Channel.connect(address, SECRET, "steps").close()
        assert role_of(taken) == "steps"
    assert not failures
