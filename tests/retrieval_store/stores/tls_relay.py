"""A relay that ends TLS in front of a server that has none.

It also passes on clients without TLS: a Sentinel must reach its servers at the addresses that it gives to clients.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

import trustme

from deployments.channels.tls import TlsStream
from tests.support.redis_server import HOST
from tests.support.waiting import LIMIT_S

HANDSHAKE = b"\x16"  # the first byte of TLS


class TlsRelay:
    """Listens on 127.0.0.1 in threads.

    Args:
        target: port on 127.0.0.1 to which bytes are passed on.
        authority: signs the certificate.
        names: hosts that the certificate is for.
    """

    def __init__(self, target: int, authority: trustme.CA, names: Sequence[str] = (HOST, "localhost")) -> None:
        self._target = target
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(*names).configure_cert(self._context)
        self._server = socket.create_server((HOST, 0), backlog=100)
        self.port: int = self._server.getsockname()[1]
        self._open: list[socket.socket] = []

    def cut(self) -> None:
        """Close all connections; new ones are accepted."""
        for connection in self._open:
            _hang_up(connection)
        self._open.clear()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        _hang_up(self._server)
        self._server.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._server.accept()
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, socket.create_connection((HOST, self._target)) as upstream:
            client: socket.socket | TlsStream = connection
            if connection.recv(1, socket.MSG_PEEK) == HANDSHAKE:
                client = TlsStream(connection, self._context, True, time.monotonic() + LIMIT_S)
                client.settimeout(None)
            answers = threading.Thread(target=_pump, args=(upstream, client), daemon=True)
            answers.start()
            _pump(client, upstream)
            answers.join()


def _pump(source: socket.socket | TlsStream, sink: socket.socket | TlsStream) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        _hang_up(end)


def _hang_up(connection: socket.socket | TlsStream) -> None:
    with suppress(OSError):  # closed before
        connection.shutdown(socket.SHUT_RDWR)
