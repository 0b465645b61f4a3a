"""The transport seam of the step path: authenticated, framed byte channels over Unix sockets or TCP.

Frames are a 4-byte little-endian length and a payload. Nothing is read beyond a fixed-size handshake before the peer
has proved that it knows the pipeline's secret (HMAC-SHA256 over a fresh nonce, both ways), and payloads are never
unpickled. Stages use the blocking half in their loop thread, the router the asyncio half.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

from engine.errors import TargetLostError

NONCE = 16  # bytes
PROOF = 32  # bytes
ROLE = 8  # bytes, padded
MAX_FRAME = 1 << 30  # bytes
HANDSHAKE_S = 5.0  # for all of a handshake
READ_AHEAD = 1 << 22  # bytes the asyncio half takes in before it is asked
_LENGTH = struct.Struct("<I")


class UnauthenticatedError(TargetLostError):
    """The peer does not know the secret."""


def proof(secret: bytes, nonce: bytes, role: bytes) -> bytes:
    """What only a holder of the secret can answer to a nonce, for one role."""
    return hmac.new(secret, nonce + role, hashlib.sha256).digest()


def _padded(role: str) -> bytes:
    raw = role.encode()
    assert 0 < len(raw) <= ROLE, f"role {role!r} is longer than {ROLE} bytes"
    return raw.ljust(ROLE)


def parse(address: str) -> tuple[int, str | tuple[str, int]]:
    """``unix:/path`` or ``tcp:host:port`` -> socket family and address."""
    kind, _, rest = address.partition(":")
    if kind == "unix":
        return socket.AF_UNIX, rest
    host, _, port = rest.rpartition(":")
    return socket.AF_INET, (host, int(port))


def listen(address: str) -> tuple[socket.socket, str]:
    """A listening socket and the address peers reach it by (a TCP port of 0 is replaced by the real one)."""
    family, where = parse(address)
    if family == socket.AF_UNIX:
        Path(str(where)).unlink(missing_ok=True)
    server = socket.socket(family, socket.SOCK_STREAM)
    server.bind(where)
    server.listen(8)
    if family == socket.AF_UNIX:
        os.chmod(str(where), 0o600)
        return server, address
    host, port = server.getsockname()
    return server, f"tcp:{host}:{port}"


class Channel:
    """Blocking half: one authenticated connection."""

    def __init__(self, connection: socket.socket, role: str) -> None:
        self.role = role
        self._socket = connection
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def accept(cls, connection: socket.socket, secret: bytes, register: Callable[[Channel], None]) -> None:
        """Authenticate a peer that connected, and ``register`` its channel before it learns that it is welcome: what
        it does next may rely on that. The connection is closed on failure.

        Raises:
            UnauthenticatedError: it does not know the secret, or takes too long to show it.
        """
        deadline = time.monotonic() + HANDSHAKE_S
        try:
            role, back = _challenge(connection, secret, deadline)
            connection.settimeout(None)
            register(cls(connection, role.decode(errors="replace").strip()))
            connection.sendall(proof(secret, back, b"server"))
        except (OSError, EOFError) as error:
            connection.close()
            raise UnauthenticatedError(f"handshake broke off: {error}") from error
        except UnauthenticatedError:
            connection.close()
            raise

    @classmethod
    def connect(cls, address: str, secret: bytes, role: str) -> Channel:
        """Connect to a listening peer and authenticate both ways.

        Raises:
            UnauthenticatedError: the peer does not know the secret.
            OSError: nobody listens there, or too slowly.
            EOFError: the peer turned us away.
        """
        family, where = parse(address)
        connection = socket.socket(family, socket.SOCK_STREAM)
        deadline = time.monotonic() + HANDSHAKE_S
        try:
            connection.settimeout(HANDSHAKE_S)
            connection.connect(where)
            mine = os.urandom(NONCE)
            nonce = _receive_exactly(connection, NONCE, deadline)
            connection.sendall(_padded(role) + proof(secret, nonce, _padded(role)) + mine)
            if not hmac.compare_digest(_receive_exactly(connection, PROOF, deadline), proof(secret, mine, b"server")):
                raise UnauthenticatedError(f"{address} does not know the pipeline's secret")
        except BaseException:
            connection.close()
            raise
        connection.settimeout(None)
        return cls(connection, role)

    def send(self, payload: bytes) -> None:
        """Send one frame; raises OSError when the peer is gone."""
        self._socket.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive(self) -> bytes:
        """The next frame; raises EOFError or OSError when the peer is gone."""
        (length,) = _LENGTH.unpack(_receive_exactly(self._socket, _LENGTH.size))
        if length > MAX_FRAME:
            raise EOFError(f"a frame of {length} bytes is longer than {MAX_FRAME}")
        return _receive_exactly(self._socket, length)

    def close(self) -> None:
        """Close; a thread that waits in ``receive`` wakes up with EOFError."""
        with contextlib.suppress(OSError):  # the peer was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _challenge(connection: socket.socket, secret: bytes, deadline: float) -> tuple[bytes, bytes]:
    """Let a peer prove itself; returns its role and the nonce it wants answered."""
    nonce = os.urandom(NONCE)
    connection.settimeout(HANDSHAKE_S)
    connection.sendall(nonce)
    hello = _receive_exactly(connection, ROLE + PROOF + NONCE, deadline)
    role, given, back = hello[:ROLE], hello[ROLE : ROLE + PROOF], hello[-NONCE:]
    if not hmac.compare_digest(given, proof(secret, nonce, role)):
        raise UnauthenticatedError("a peer without the pipeline's secret was turned away")
    return role, back


def _receive_exactly(connection: socket.socket, n: int, deadline: float | None = None) -> bytes:
    """``n`` bytes; ``deadline`` (monotonic seconds) holds for all of them, so that trickling does not help."""
    buffer = bytearray(n)
    view = memoryview(buffer)
    while view:
        if deadline is not None:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
        got = connection.recv_into(view)
        if got == 0:
            raise EOFError("the peer closed the channel")
        view = view[got:]
    return bytes(buffer)


class AsyncChannel:
    """Asyncio half: used by the router."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, address: str, secret: bytes, role: str) -> AsyncChannel:
        """Like ``Channel.connect``; raises TargetLostError when nobody listens or the peer breaks off."""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                channel = cls(*await _open(address))
                try:
                    await channel._authenticate(address, secret, role)
                except BaseException:
                    channel.close()
                    raise
        except (OSError, EOFError, TimeoutError) as error:
            raise TargetLostError(f"no stage answers at {address}: {str(error) or 'too slow'}") from error
        return channel

    async def _authenticate(self, address: str, secret: bytes, role: str) -> None:
        nonce, mine = await self._reader.readexactly(NONCE), os.urandom(NONCE)
        self._writer.write(_padded(role) + proof(secret, nonce, _padded(role)) + mine)
        if not hmac.compare_digest(await self._reader.readexactly(PROOF), proof(secret, mine, b"server")):
            raise UnauthenticatedError(f"{address} does not know the pipeline's secret")

    def send(self, payload: bytes) -> None:
        """Hand one frame to the transport; never waits or fails (a lost peer shows in ``receive``)."""
        if not self._writer.is_closing():  # uvloop raises on a transport that the peer's going has closed
            self._writer.write(_LENGTH.pack(len(payload)) + payload)

    async def receive(self) -> bytes:
        """The next frame; raises TargetLostError when the peer is gone."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > MAX_FRAME:
                raise TargetLostError(f"a frame of {length} bytes is longer than {MAX_FRAME}")
            return await self._reader.readexactly(length)
        except (OSError, EOFError) as error:
            raise TargetLostError(f"the channel to the target broke: {error}") from error

    def close(self) -> None:
        """Close at once; what was not sent yet is dropped."""
        self._writer.transport.abort()


async def _open(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    family, where = parse(address)
    if family == socket.AF_UNIX:
        return await asyncio.open_unix_connection(str(where), limit=READ_AHEAD)
    return await asyncio.open_connection(where[0], int(where[1]), limit=READ_AHEAD)
