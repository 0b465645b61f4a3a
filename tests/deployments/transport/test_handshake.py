"""The handshake without sockets: only two holders of one secret get through, however their bytes are cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.transport.handshake import (
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
    assert client.n_wanted == server.n_wanted == 0
    return sent


@given(st.binary(max_size=64), st.sampled_from(ROLES), st.lists(st.integers(1, 60), min_size=1))
def test_holders_of_one_secret_get_through_however_their_bytes_are_cut(
    secret: bytes, role: str, sizes: list[int]
) -> None:
    server = ServerHandshake(secret, ROLES)
    sent = run(ClientHandshake(secret, role, "here"), server, endless(sizes))
    assert [len(message) for message in sent] == [NONCE, ROLE + PROOF + NONCE, PROOF]
    assert server.role == role


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_a_client_with_another_secret_is_turned_away_and_learns_nothing(ours: bytes, theirs: bytes) -> None:
    # HMAC fills keys up with zeros: such secrets are equal to it.
    if ours.ljust(64, b"\0") == theirs.ljust(64, b"\0"):
        return
    client, server = ClientHandshake(theirs, "steps", "here"), ServerHandshake(ours, ROLES)
    hello = client.receive(server.opening)
    with pytest.raises(UnauthenticatedError, match="without the secret"):
        server.receive(hello)
    assert server.role == ""


def test_a_server_with_another_secret_is_refused_by_its_address() -> None:
    client = ClientHandshake(SECRET, "steps", "unix:/run/x")
    hello = client.receive(b"n" * NONCE)
    with pytest.raises(UnauthenticatedError, match=r"unix:/run/x does not know the secret"):
        client.receive(proof(b"guess", hello[-NONCE:], b"server"))


def test_a_server_cannot_pass_off_the_clients_own_proof_as_its_own() -> None:
    client = ClientHandshake(SECRET, "steps", "here")
    hello = client.receive(b"n" * NONCE)
    with pytest.raises(UnauthenticatedError):
        client.receive(hello[ROLE : ROLE + PROOF])


@pytest.mark.parametrize("role", ["stage", "step", "stepsx", "server", "STEPS"])
def test_a_role_that_is_not_served_is_turned_away_though_the_secret_is_right(role: str) -> None:
    client, server = ClientHandshake(SECRET, role, "here"), ServerHandshake(SECRET, ROLES)
    with pytest.raises(UnauthenticatedError, match=f"'{role}' is none of steps, results"):
        server.receive(client.receive(server.opening))


def test_a_proof_for_one_role_or_one_nonce_opens_nothing_else() -> None:
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
def test_a_truncated_message_is_not_answered_and_its_end_breaks_the_handshake_off(n: int) -> None:
    client, server = ClientHandshake(SECRET, "steps", "here"), ServerHandshake(SECRET, ROLES)
    hello = client.receive(server.opening)
    assert deliver(server, hello[:n], endless([n])) == b""
    assert server.n_wanted == len(hello) - n
    with pytest.raises(EOFError, match="closed"):
        server.receive(b"")


@pytest.mark.parametrize("role", ["", "ninebytes"])
def test_a_role_that_fits_no_field_is_a_mistake_of_the_caller(role: str) -> None:
    with pytest.raises(AssertionError, match="must have 1 to 8 bytes"):
        ClientHandshake(SECRET, role, "here")
