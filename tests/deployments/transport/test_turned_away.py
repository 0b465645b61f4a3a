"""On either side of the step path, a peer that does not know the secret is turned away unheard."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Any

import pytest

from deployments.transport import channel as channel_module
from deployments.transport.async_channel import AsyncChannel
from deployments.transport.channel import Channel
from deployments.transport.handshake import PROOF, UnauthenticatedError
from engine.errors import TargetLostError
from tests.support.listeners import SECRET, Listener, exchange, hello

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
