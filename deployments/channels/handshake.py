"""The handshake of every channel as a state machine: bytes in, bytes out. It uses no sockets, no clocks and no Ray.

Both peers prove that they know a shared secret by HMAC-SHA256 over the other's fresh nonce, in three messages of fixed
size:

    server -> client   nonce                                         16 bytes
    client -> server   role, proof over (nonce, role), own nonce     8 + 32 + 16 bytes
    server -> client   proof over (the client's nonce, "server")     32 bytes

A proof holds for one nonce and one role: neither a recorded handshake nor the proof of another role opens a channel.
The server answers only a client that has proved itself, so other peers see nothing derived from the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from abc import ABC, abstractmethod
from collections.abc import Collection

from engine.errors import TargetLostError

NONCE = 16  # bytes
PROOF = 32  # bytes
ROLE = 8  # bytes, padded with blanks
_SERVER = b"server"  # replaces the role in the server's proof
# Roles of the connections that a stage accepts.
STEPS, RESULTS = "steps", "results"  # of the router: steps go in, results come out
STAGE = "stage"  # of the previous stage
ROWS = "rows"  # of the last stage, which requests attention rows
RANK = "rank"  # of the leader of this stage's tensor-parallel ranks
STAGE_ROLES = (STEPS, RESULTS, STAGE, ROWS, RANK)


class UnauthenticatedError(TargetLostError):
    """The peer does not know the secret, or requests a role that is not served."""


def proof(secret: bytes, nonce: bytes, role: bytes) -> bytes:
    """``PROOF`` bytes that only a holder of ``secret`` can compute from a nonce, for one role."""
    return hmac.new(secret, nonce + role, hashlib.sha256).digest()


class Handshake(ABC):
    """One side of a handshake. A driver sends ``opening``, then sends every reply of ``receive`` until it is done.

    Args:
        secret: shared by both sides.
        n_missing: bytes of the first message from the peer.
    """

    opening = b""  # to be sent first

    def __init__(self, secret: bytes, n_missing: int) -> None:
        self._secret = secret
        self._nonce = os.urandom(NONCE)
        self._received = b""
        self.n_missing = n_missing  # bytes of the peer's next message not received yet; 0: the handshake is done

    def receive(self, data: bytes) -> bytes:
        """Process up to ``n_missing`` bytes of the peer; returns the bytes to send to it, which may be none.

        Raises:
            UnauthenticatedError: the peer failed to prove itself.
            EOFError: ``data`` is empty, which means that the peer closed the connection.
        """
        if not data:
            raise EOFError("the peer closed the channel")
        assert len(data) <= self.n_missing, "bytes after the handshake belong to the channel"
        self._received += data
        self.n_missing -= len(data)
        if self.n_missing:
            return b""
        message, self._received = self._received, b""
        return self._answer(message)

    @abstractmethod
    def _answer(self, message: bytes) -> bytes:
        """Check a whole message and return the reply; sets ``n_missing`` if another message has to follow."""

    def _check(self, given: bytes, role: bytes, failure: str) -> None:
        if not hmac.compare_digest(given, proof(self._secret, self._nonce, role)):
            raise UnauthenticatedError(failure)


class ServerHandshake(Handshake):
    """The side that accepted the connection.

    Args:
        secret: shared by both sides.
        roles: served here; a client with any other is turned away.
    """

    def __init__(self, secret: bytes, roles: Collection[str]) -> None:
        super().__init__(secret, ROLE + PROOF + NONCE)
        self._roles = roles
        self.opening = self._nonce
        self.role = ""  # of the client, once it has proved itself

    def _answer(self, message: bytes) -> bytes:
        role, given, nonce = message[:ROLE], message[ROLE : ROLE + PROOF], message[-NONCE:]
        self._check(given, role, "a peer without the secret of this channel was turned away")
        name = role.decode(errors="replace").rstrip()
        if name not in self._roles:
            raise UnauthenticatedError(f"a peer was turned away: role {name!r} is none of {', '.join(self._roles)}")
        self.role = name
        return proof(self._secret, nonce, _SERVER)


class ClientHandshake(Handshake):
    """The side that connected.

    Args:
        secret: shared by both sides.
        role: what the client is to the server, 1 to ``ROLE`` bytes.
        address: of the server, for the message when it does not know the secret.
    """

    def __init__(self, secret: bytes, role: str, address: str) -> None:
        super().__init__(secret, NONCE)
        assert 0 < len(role.encode()) <= ROLE, f"role {role!r} must have 1 to {ROLE} bytes"
        self._role = role.encode().ljust(ROLE)
        self._address = address
        self._has_proved = False

    def _answer(self, message: bytes) -> bytes:
        if self._has_proved:
            self._check(message, _SERVER, f"{self._address} does not know the secret of this channel")
            return b""
        self._has_proved, self.n_missing = True, PROOF
        return self._role + proof(self._secret, message, self._role) + self._nonce
