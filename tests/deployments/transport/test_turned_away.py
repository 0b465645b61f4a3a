"""Peers that do not know the secret, on either side of the step path, are turned away unheard."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time

import pytest

from deployments.transport import channel as channel_module
from deployments.transport.addresses import listen, parse
from deployments.transport.async_channel import AsyncChannel
from deployments.transport.channel import Channel
from deployments.transport.encryption import tls_context
from deployments.transport.handshake import NONCE, PROOF, ROLE, UnauthenticatedError, proof
from engine.errors import TargetLostError
from tests.support.listeners import SECRET, Listener, exchange, hello


def test_a_peer_with_the_wrong_secret_is_turned_away_unheard_and_the_right_one_is_served_next(
    listener: Listener,
) -> None:
    stranger = listener.raw()
    stranger.sendall(hello(stranger, b"wrong" * 8) + struct.pack("<I", 4) + b"evil")
    assert "turned away" in str(listener.refused.get(timeout=5))
    assert listener.accepted.empty()  # no channel exists that could have read the payload
    with contextlib.suppress(ConnectionResetError):  # as its payload is still unread
        assert stranger.recv(PROOF) == b""  # and it learns nothing made with the secret
    stranger.close()
    with pytest.raises((UnauthenticatedError, EOFError)):
        Channel.connect(listener.address, b"wrong" * 8, "steps")
    client = Channel.connect(listener.address, SECRET, "steps")
    exchange(client, listener.accepted.get(timeout=5), [b"right"])
    client.close()


async def test_the_asyncio_half_is_turned_away_too(listener: Listener) -> None:
    with pytest.raises(TargetLostError):
        await AsyncChannel.connect(listener.address, b"wrong" * 8, "steps")
    client = await AsyncChannel.connect(listener.address, SECRET, "steps")
    client.close()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 20, b"x" * 1000], ids=len)
def test_a_peer_that_breaks_off_in_the_handshake_harms_no_other(listener: Listener, said: bytes) -> None:
    stranger = listener.raw()
    stranger.sendall(said)
    stranger.close()
    assert listener.refused.get(timeout=5)
    client = Channel.connect(listener.address, SECRET, "steps")
    exchange(client, listener.accepted.get(timeout=5), [b"right"])
    client.close()


def test_a_recorded_handshake_cannot_be_played_again(listener: Listener) -> None:
    first = listener.raw()
    recorded = hello(first, SECRET)
    first.sendall(recorded)
    assert len(first.recv(PROOF)) == PROOF
    second = listener.raw()
    second.sendall(recorded)
    assert "turned away" in str(listener.refused.get(timeout=5))
    first.close()
    second.close()


def test_a_proof_for_one_role_opens_no_other(listener: Listener) -> None:
    stranger = listener.raw()
    recorded = hello(stranger, SECRET, b"results")
    stranger.sendall(b"steps".ljust(ROLE) + recorded[ROLE:])
    assert "turned away" in str(listener.refused.get(timeout=5))
    stranger.close()


def test_a_peer_that_trickles_has_no_more_time_than_one_that_is_silent(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "HANDSHAKE_S", 0.3)
    began = time.monotonic()
    stranger = listener.raw()
    for _ in range(20):  # a byte every 50 ms: each receive is in time, the whole is not
        try:
            stranger.sendall(b"x")
        except OSError:
            break
        time.sleep(0.05)
    assert "broke off" in str(listener.refused.get(timeout=5))
    assert time.monotonic() - began < 2
    stranger.close()


def impostor(listener: Listener) -> str:
    """A server at a new address that has heard of the protocol, but not the secret."""
    family, where = parse(listener.address)
    server, address = listen(f"unix:{where}2" if family == socket.AF_UNIX else "tcp:127.0.0.1:0")

    def serve() -> None:
        for _ in range(2):
            peer, _ = server.accept()
            if family != socket.AF_UNIX:
                peer = tls_context(SECRET, True).wrap_socket(peer, server_side=True)
            peer.sendall(b"n" * NONCE)
            said = peer.recv(ROLE + PROOF + NONCE)
            peer.sendall(proof(b"guess", said[-NONCE:], b"server"))
            peer.close()
        server.close()

    threading.Thread(target=serve, daemon=True).start()
    return address


async def test_a_client_refuses_a_server_that_does_not_know_the_secret(listener: Listener) -> None:
    address = impostor(listener)
    with pytest.raises(UnauthenticatedError):
        await asyncio.to_thread(Channel.connect, address, SECRET, "steps")
    with pytest.raises(UnauthenticatedError):
        await AsyncChannel.connect(address, SECRET, "steps")
