"""A TLS connection with the part of a socket's interface that blocking channels use.

``ssl.SSLSocket`` does not allow one thread to send while another one waits for bytes. Here the state of TLS
is behind a lock that is never held while the kernel is waited for.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from deployments.channels.encryption import tls_context

RECEIVE = 1 << 18  # bytes taken from the kernel at once
ENCRYPT = 1 << 20  # bytes encrypted before they are sent


class TlsStream:
    """One connection; one thread at a time may send, and one receive.

    Args:
        connection: connected, with no timeout.
        context: of this side.
        is_server: whether this side accepted the connection.
        deadline: monotonic seconds by which the handshake must be over.

    Raises:
        OSError: the peer does not show the certificate of the secret, or is too slow.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, is_server: bool, deadline: float) -> None:
        self._socket = connection
        self.family = connection.family
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, is_server)
        self._lock = threading.Lock()  # for the three above
        self._received = memoryview(bytearray(RECEIVE))
        self._shake_hands(deadline)

    def _shake_hands(self, deadline: float) -> None:
        is_done = False
        while not is_done:
            try:
                self._tls.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                pass
            finally:  # an alert tells the peer why
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                self._socket.sendall(self._outgoing.read())
            if not is_done:
                self._take()

    def _take(self) -> None:
        """Wait for bytes of the peer."""
        n = self._socket.recv_into(self._received)
        with self._lock:
            if n:
                self._incoming.write(self._received[:n])
            else:
                self._incoming.write_eof()

    def _encrypted(self, parts: Sequence[memoryview]) -> bytes:
        with self._lock:
            for part in parts:
                self._tls.write(part)
            return self._outgoing.read()

    def sendall(self, data: bytes | memoryview) -> None:
        """As ``socket.sendall``."""
        self._socket.sendall(self._encrypted([memoryview(data)]))

    def sendmsg(self, parts: Sequence[memoryview]) -> int:
        """As ``socket.sendmsg``: sends the first bytes, returns how many."""
        some, n = list[memoryview](), 0
        for part in parts:
            some.append(part[: ENCRYPT - n])
            n += some[-1].nbytes
            if n == ENCRYPT:
                break
        self._socket.sendall(self._encrypted(some))
        return n

    def send_now(self, parts: Sequence[memoryview]) -> Callable[[], None] | None:
        """Send what the kernel takes at once; returns a function that sends the rest and must be called next, or None
        when there is no rest."""
        rest = memoryview(self._encrypted(parts))
        with contextlib.suppress(BlockingIOError):
            while rest:
                rest = rest[self._socket.send(rest, socket.MSG_DONTWAIT) :]
        return partial(self._socket.sendall, rest) if rest else None

    def recv_into(self, view: memoryview) -> int:
        """As ``socket.recv_into``."""
        while True:
            try:
                with self._lock:
                    n: int = self._tls.read(len(view), view)  # type: ignore[assignment]  # with a buffer, a number
                    return n
            except ssl.SSLWantReadError:
                self._take()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0

    def recv(self, n: int) -> bytes:
        """As ``socket.recv``."""
        buffer = bytearray(n)
        return bytes(buffer[: self.recv_into(memoryview(buffer))])

    def settimeout(self, seconds: float | None) -> None:
        """As ``socket.settimeout``."""
        self._socket.settimeout(seconds)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """As ``socket.setsockopt``."""
        self._socket.setsockopt(level, option, value)

    def getsockname(self) -> tuple[str, int]:
        """Host and port, as the first of ``socket.getsockname``."""
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    def fileno(self) -> int:
        """As ``socket.fileno``."""
        return self._socket.fileno()

    def shutdown(self, how: int) -> None:
        """As ``socket.shutdown``."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """As ``socket.close``."""
        self._socket.close()


def secured(connection: socket.socket, secret: bytes, is_server: bool, deadline: float) -> socket.socket | TlsStream:
    """A Unix socket as it is, because no other machine can reach it; TLS over TCP. Raises as ``TlsStream``."""
    if connection.family == socket.AF_UNIX:
        return connection
    return TlsStream(connection, tls_context(secret, is_server), is_server, deadline)
