"""TLS of channels between nodes, from nothing but the secret that both ends know.

Key and certificate are a function of the secret: both ends derive the same ones, show them, and trust no others. An
operator runs no certificate authority and renews nothing: a certificate lives as long as its pipeline or router.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

RECEIVE = 1 << 18  # bytes taken from the kernel at once
ENCRYPT = 1 << 20  # bytes encrypted before they are sent
NAME = "spectra channel"
ALWAYS = (datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))  # valid by any clock


@lru_cache(maxsize=16)  # a process has few secrets: of its own pipeline or router, and of a few peers
def tls_context(secret: bytes, is_server: bool) -> ssl.SSLContext:
    """A TLS context for one side of a channel; the peer must show the certificate of the same secret."""
    # Imported here, because processes without channels between nodes do not need these libraries.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.from_private_bytes(HKDF(SHA256(), 32, None, NAME.encode()).derive(secret))
    certificate = _certificate(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the key identifies a peer, not its address
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate)
    if is_server:
        context.num_tickets = 0  # no connection is resumed
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    descriptor = os.memfd_create(NAME)  # Python's contexts read keys from files only; this one is on no disk
    try:
        os.write(descriptor, private + ssl.DER_cert_to_PEM_cert(certificate).encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context


def _certificate(key: Ed25519PrivateKey) -> bytes:
    """The certificate in DER, the same bytes at both ends: Ed25519 signs deterministically."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, *ALWAYS)
    return builder.sign(key, None).public_bytes(Encoding.DER)


class TlsStream:
    """A TLS connection with the part of a socket's interface that blocking channels use.

    One thread at a time may send, and one receive. ``ssl.SSLSocket`` does not allow both at once; here a lock guards
    the state of TLS and is never held while a thread waits for the kernel.

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
            finally:  # an alert gives the peer the reason
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
        """Send what the kernel takes at once; returns a function that sends the rest, or None if all is sent.

        Call that function before any other method that sends.
        """
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
    """Return a Unix socket as it is, because no other machine can reach it, and a TCP socket in TLS; raises OSError."""
    if connection.family == socket.AF_UNIX:
        return connection
    return TlsStream(connection, tls_context(secret, is_server), is_server, deadline)
