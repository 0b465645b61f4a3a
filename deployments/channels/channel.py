"""Authenticated channels that carry frames of bytes over Unix sockets, or over TCP in TLS.

A frame is a 4-byte little-endian length and a payload. Before the peer has authenticated itself, only the handshake
(``deployments.channels.handshake``) is read. Payloads are never unpickled. Stages use these blocking channels in their
loop thread; routers and ingresses use ``async_channel``.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

from deployments.channels.addresses import HANDSHAKE_S, parse, tune
from deployments.channels.handshake import ClientHandshake, Handshake, ServerHandshake, UnauthenticatedError
from deployments.channels.tls import TlsStream, secured

MAX_FRAME = 1 << 30  # bytes
LENGTH = struct.Struct("<I")  # in front of every frame


class Channel:
    """One authenticated connection with blocking calls."""

    def __init__(self, connection: socket.socket | TlsStream, role: str) -> None:
        self.role = role
        self._socket = connection
        tune(connection)

    @classmethod
    def accept(
        cls, connection: socket.socket, secret: bytes, roles: Collection[str], register: Callable[[Channel], None]
    ) -> None:
        """Authenticate a peer that connected, and ``register`` its channel before the peer learns that it is accepted:
        the peer's next action may rely on the registration. A failure closes the connection.

        Raises:
            UnauthenticatedError: the peer does not know the secret, uses TCP without TLS, requests a role that is not
                in ``roles``, or needs more than ``HANDSHAKE_S`` seconds.
        """
        handshake = ServerHandshake(secret, roles)
        deadline = time.monotonic() + HANDSHAKE_S
        try:
            stream = secured(connection, secret, True, deadline)
            last = _shake_hands(stream, handshake, deadline)
            stream.settimeout(None)
            register(cls(stream, handshake.role))
            stream.sendall(last)
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
            OSError: no process listens there, or the peer needs more than ``HANDSHAKE_S`` seconds.
            EOFError: the peer turned the connection away.
        """
        family, where = parse(address)
        connection = socket.socket(family, socket.SOCK_STREAM)
        deadline = time.monotonic() + HANDSHAKE_S
        try:
            connection.settimeout(HANDSHAKE_S)
            connection.connect(where)
            stream = secured(connection, secret, False, deadline)
            _shake_hands(stream, ClientHandshake(secret, role, address), deadline)
        except ssl.SSLError as error:
            connection.close()
            raise UnauthenticatedError(f"{address} does not know the secret of this channel: {error}") from error
        except BaseException:
            connection.close()
            raise
        stream.settimeout(None)
        return cls(stream, role)

    @property
    def local_host(self) -> str:
        """IP address of this end of the connection; loopback for a Unix socket."""
        return "127.0.0.1" if self._socket.family == socket.AF_UNIX else str(self._socket.getsockname()[0])

    @property
    def is_hung_up(self) -> bool:
        """Whether the peer is gone or this end is closed, as far as the kernel knows; never waits."""
        return self.hangs_up(within=0.0)

    def hangs_up(self, within: float) -> bool:
        """Wait up to ``within`` seconds until the peer is gone or this end is closed; returns whether that happened."""
        poll = select.poll()
        try:
            poll.register(self._socket, select.POLLRDHUP)
            return bool(poll.poll(1e3 * within))
        except (OSError, ValueError):  # closed here
            return True

    def set_timeout(self, seconds: float | None) -> None:
        """Set how many seconds a blocking call may wait for the peer before it raises TimeoutError; None: no limit."""
        self._socket.settimeout(seconds)

    def send(self, payload: bytes | bytearray) -> None:
        """Send one frame; raises OSError when the peer is gone."""
        self.send_all(self.frame(payload))

    @staticmethod
    def frame(payload: bytes | bytearray) -> list[memoryview]:
        """The parts of a frame, to be sent one after the other."""
        return [memoryview(LENGTH.pack(len(payload))), memoryview(payload)]

    def send_all(self, parts: Sequence[memoryview]) -> None:
        """Send parts without joining them; blocks while the kernel's buffer is full. Raises like ``send``."""
        rest = [part for part in parts if part.nbytes]
        while rest:
            rest = _after(rest, self._socket.sendmsg(rest))

    def send_now(self, parts: Sequence[memoryview]) -> Callable[[], None] | None:
        """Send what the kernel takes at once; returns a function that sends the rest, or None if all is sent.

        Call that function before any other method that sends. Both raise as ``send``.
        """
        rest = [part for part in parts if part.nbytes]
        if isinstance(self._socket, TlsStream):
            return self._socket.send_now(rest)
        with contextlib.suppress(BlockingIOError):
            while rest:
                rest = _after(rest, self._socket.sendmsg(rest, [], socket.MSG_DONTWAIT))
        return partial(self.send_all, rest) if rest else None

    def receive_into(self, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes that follow, outside any frame; raises like ``receive``."""
        _fill(self._socket, buffer)

    def receive(self) -> bytes:
        """The next frame; raises EOFError or OSError when the peer is gone."""
        (length,) = LENGTH.unpack(_receive_exactly(self._socket, LENGTH.size))
        if length > MAX_FRAME:
            raise EOFError(f"a frame of {length} bytes is longer than the limit of {MAX_FRAME}")
        return _receive_exactly(self._socket, length)

    def close(self) -> None:
        """Close; a thread that waits in ``receive`` gets EOFError."""
        with contextlib.suppress(OSError):  # the peer was faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _shake_hands(connection: socket.socket | TlsStream, handshake: Handshake, deadline: float) -> bytes:
    """Run a handshake up to its last reply, and return that unsent.

    ``deadline`` (monotonic seconds) holds for the whole handshake: a peer that sends byte by byte gains no time.
    """
    connection.settimeout(HANDSHAKE_S)
    reply = handshake.opening
    while handshake.n_missing:
        connection.sendall(reply)
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        reply = handshake.receive(connection.recv(handshake.n_missing))
    return reply


def _receive_exactly(connection: socket.socket | TlsStream, n: int) -> bytes:
    buffer = bytearray(n)
    _fill(connection, memoryview(buffer))
    return bytes(buffer)


def _fill(connection: socket.socket | TlsStream, view: memoryview) -> None:
    while view:
        got = connection.recv_into(view)
        if got == 0:
            raise EOFError("the peer closed the channel")
        view = view[got:]


def _after(parts: list[memoryview], n: int) -> list[memoryview]:
    """``parts`` without their first ``n`` bytes."""
    while parts and n >= parts[0].nbytes:
        n -= parts[0].nbytes
        parts = parts[1:]
    return [parts[0][n:], *parts[1:]] if n else parts
