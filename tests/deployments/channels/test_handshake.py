"""The handshake without sockets: only two holders of one secret complete it, however their bytes are split."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.channels.handshake import (
    NONCE,
    PROOF,
    ROLE,
    ClientHandshake,
    Handshake,
    ServerHandshake,
    UnauthenticatedError,
    proof,
)

SECRET = b"s" * 32
ROLES = ("steps", "results")


def pieces(data: bytes, sizes: Iterator[int]) -> Iterator[bytes]:
    while data:
        n = next(sizes)
        yield data[:n]
        data = data[n:]


def deliver(receiver: Handshake, data: bytes, sizes: Iterator[int]) -> bytes:
    return b"".join([receiver.receive(piece) for piece in pieces(data, sizes)])


def endless(sizes: list[int]) -> Iterator[int]:
    while True:
        yield from sizes


def run(client: Handshake, server: Handshake, sizes: Iterator[int]) -> list[bytes]:
    """All messages, in order; ends with both sides done."""
    sent, receiver, other = [server.opening], client, server
    while reply := deliver(receiver, sent[-1], sizes):
        sent.append(reply)
        receiver, other = other, receiver
    assert client.n_missing == server.n_missing == 0
    return sent


@given(st.binary(max_size=64), st.sampled_from(ROLES), st.lists(st.integers(1, 60), min_size=1))
def test_two_holders_of_a_secret_complete_it_however_their_bytes_are_split(
    secret: bytes, role: str, sizes: list[int]
) -> None:
    server = ServerHandshake(secret, ROLES)
    sent = run(ClientHandshake(secret, role, "here"), server, endless(sizes))
    assert [len(message) for message in sent] == [NONCE, ROLE + PROOF + NONCE, PROOF]
    assert server.role == role


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_a_client_with_another_secret_is_turned_away(ours: bytes, theirs: bytes) -> None:
    # HMAC fills keys up with zeros: such secrets are equal to it.
    if ours.ljust(64, b"\0") == theirs.ljust(64, b"\0"):
        return
    client, server = ClientHandshake(theirs, "steps", "here"), ServerHandshake(ours, ROLES)
    hello = client.receive(server.opening)
    with pytest.raises(UnauthenticatedError, match="without the secret"):
        server.receive(hello)
    assert server.role == ""


def test_a_proof_is_valid_for_one_role_and_one_nonce() -> None:
    client, server = ClientHandshake(SECRET, "results", "here"), ServerHandshake(SECRET, ROLES)
    hello = client.receive(server.opening)
    with pytest.raises(UnauthenticatedError):
        server.receive(b"steps".ljust(ROLE) + hello[ROLE:])
    with pytest.raises(UnauthenticatedError):
        ServerHandshake(SECRET, ROLES).receive(hello)


@given(st.binary(min_size=ROLE + PROOF + NONCE, max_size=ROLE + PROOF + NONCE))
def test_garbage_is_turned_away(garbage: bytes) -> None:
    server = ServerHandshake(SECRET, ROLES)
    with pytest.raises(UnauthenticatedError):
        server.receive(garbage)
    client = ClientHandshake(SECRET, "steps", "here")
    client.receive(garbage[:NONCE])
    with pytest.raises(UnauthenticatedError):
        client.receive(garbage[:PROOF])


@pytest.mark.parametrize("n", [0, 1, ROLE + PROOF + NONCE - 1])
def test_a_truncated_message_is_not_answered(n: int) -> None:
    client, server = ClientHandshake(SECRET, "steps", "here"), ServerHandshake(SECRET, ROLES)
    hello = client.receive(server.opening)
    assert deliver(server, hello[:n], endless([n])) == b""
    assert server.n_missing == len(hello) - n
    with pytest.raises(EOFError, match="closed"):
        server.receive(b"")


def test_a_server_that_does_not_know_the_secret_is_refused_by_its_address() -> None:
    for echoes in (False, True):  # guesses, or sends the client's own proof back
        client = ClientHandshake(SECRET, "steps", "unix:/run/x")
        hello = client.receive(b"n" * NONCE)
        guess = hello[ROLE : ROLE + PROOF] if echoes else proof(b"guess", hello[-NONCE:], b"server")
        with pytest.raises(UnauthenticatedError, match=r"unix:/run/x does not know the secret"):
            client.receive(guess)


def test_a_role_that_is_not_served_or_too_long_is_refused() -> None:
    for role in ("stage", "step", "stepsx", "server", "STEPS"):
        client, server = ClientHandshake(SECRET, role, "here"), ServerHandshake(SECRET, ROLES)
        with pytest.raises(UnauthenticatedError, match=f"'{role}' is none of steps, results"):
            server.receive(client.receive(server.opening))
    for role in ("", "ninebytes"):
        with pytest.raises(AssertionError, match="must have 1 to 8 bytes"):
            ClientHandshake(SECRET, role, "here")
