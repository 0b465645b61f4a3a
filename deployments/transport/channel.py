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
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence

from deployments.transport.addresses import READ_AHEAD as READ_AHEAD
from deployments.transport.addresses import listen as listen
from deployments.transport.addresses import open_streams, tune
from deployments.transport.addresses import parse as parse
from engine.errors import TargetLostError

NONCE = 16  # bytes
PROOF = 32  # bytes
ROLE = 8  # bytes, padded
MAX_FRAME = 1 << 30  # bytes
HANDSHAKE_S = 5.0  # for all of a handshake
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


class Channel:
    """Blocking half: one authenticated connection."""

    def __init__(self, connection: socket.socket, role: str) -> None:
        self.role = role
        self._socket = connection
        tune(connection)

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

    @property
    def local_host(self) -> str:
        """The address of this machine that the peer is connected to; loopback for a Unix socket."""
        return str(self._socket.getsockname()[0]) if self._socket.family == socket.AF_INET else "127.0.0.1"

    @property
    def is_hung_up(self) -> bool:
        """Whether the peer has gone, or this end is closed; asks nobody and never waits."""
        poll = select.poll()
        try:
            poll.register(self._socket, select.POLLRDHUP)
            return bool(poll.poll(0))
        except (OSError, ValueError):  # closed here
            return True

    def set_timeout(self, seconds: float | None) -> None:
        """Seconds a blocking call may wait for a sign of the peer before it raises TimeoutError; None: for ever."""
        self._socket.settimeout(seconds)

    def send(self, payload: bytes | bytearray) -> None:
        """Send one frame; raises OSError when the peer is gone."""
        self.send_all(self.frame(payload))

    @staticmethod
    def frame(payload: bytes | bytearray) -> list[memoryview]:
        """A frame as parts to be sent one behind the other."""
        return [memoryview(_LENGTH.pack(len(payload))), memoryview(payload)]

    def send_all(self, parts: Sequence[memoryview]) -> None:
        """Send parts without joining them, waiting for the peer where it must; raises like ``send``."""
        left = [part for part in parts if part.nbytes]
        while left:
            left = _behind(left, self._socket.sendmsg(left))

    def send_now(self, parts: Sequence[memoryview]) -> list[memoryview]:
        """Send what the kernel takes at once; returns the rest. Raises like ``send``."""
        left = [part for part in parts if part.nbytes]
        with contextlib.suppress(BlockingIOError):
            while left:
                left = _behind(left, self._socket.sendmsg(left, [], socket.MSG_DONTWAIT))
        return left

    def receive_into(self, room: memoryview) -> None:
        """Fill ``room`` with what follows, outside any frame; raises like ``receive``."""
        _fill(self._socket, room)

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
    _fill(connection, memoryview(buffer), deadline)
    return bytes(buffer)


def _fill(connection: socket.socket, view: memoryview, deadline: float | None = None) -> None:
    while view:
        if deadline is not None:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
        got = connection.recv_into(view)
        if got == 0:
            raise EOFError("the peer closed the channel")
        view = view[got:]


def _behind(parts: list[memoryview], n: int) -> list[memoryview]:
    """What is left of ``parts`` behind their first ``n`` bytes."""
    while parts and n >= parts[0].nbytes:
        n -= parts[0].nbytes
        parts = parts[1:]
    return [parts[0][n:], *parts[1:]] if n else parts


class AsyncChannel:
    """Asyncio half: used by the router."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        # A second descriptor of the same connection: what event loops show of theirs cannot be tuned.
        with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as connection:
            tune(connection)

    @classmethod
    async def connect(cls, address: str, secret: bytes, role: str) -> AsyncChannel:
        """Like ``Channel.connect``; raises TargetLostError when nobody listens or the peer breaks off."""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                channel = cls(*await open_streams(address))
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

    def send(self, payload: bytes | bytearray) -> None:
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
