"""A listening end of channels in a thread, and the first bytes that a client sends to it."""

from __future__ import annotations

import contextlib
import queue
import socket
import tempfile
import threading
from typing import Any

from deployments.channels.addresses import listen, parse, tcp
from deployments.channels.channel import Channel
from deployments.channels.handshake import NONCE, ROLE, STAGE_ROLES, UnauthenticatedError, proof
from deployments.channels.tls import tls_context
from tests.support.waiting import LIMIT_S

SECRET = b"s" * 32


class Listener:
    """Accepts peers one after the other on a ``unix``, ``tcp`` or ``tcp6`` socket, as a stage does."""

    def __init__(self, kind: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ch-")
        addresses = {"unix": f"unix:{self._folder.name}/s", "tcp": tcp("127.0.0.1"), "tcp6": tcp("::1")}
        self._server, self.address = listen(addresses[kind])
        self.accepted: queue.Queue[Channel] = queue.Queue()
        self._open: list[Any] = []
        self._refused: queue.Queue[UnauthenticatedError] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            try:
                Channel.accept(connection, SECRET, STAGE_ROLES, self._register)
            except UnauthenticatedError as error:
                self._refused.put(error)

    def _register(self, channel: Channel) -> None:
        self._open.append(channel)
        self.accepted.put(channel)

    def pair(self, role: str = "steps") -> tuple[Channel, Channel]:
        """Both ends of a new channel."""
        client = Channel.connect(self.address, SECRET, role)
        self._open.append(client)
        return client, self.accept()

    def accept(self) -> Channel:
        return self.accepted.get(timeout=LIMIT_S)

    def refusal(self) -> str:
        return str(self._refused.get(timeout=LIMIT_S))

    def raw(self) -> socket.socket:
        """A connection that has done at most the handshake of TLS."""
        family, where = parse(self.address)
        peer = socket.socket(family, socket.SOCK_STREAM)
        peer.settimeout(LIMIT_S)
        peer.connect(where)
        return peer if family == socket.AF_UNIX else tls_context(SECRET, False).wrap_socket(peer)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # closed before
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for one in self._open:
            one.close()
        self._folder.cleanup()


def hello(peer: socket.socket, secret: bytes, role: bytes = b"steps") -> bytes:
    """The answer of a client that knows ``secret``."""
    padded = role.ljust(ROLE)
    return padded + proof(secret, peer.recv(NONCE), padded) + b"m" * NONCE


def exchange(client: Channel, server: Channel, payloads: list[bytes]) -> None:
    """Send everything there and back, in order."""
    echo = threading.Thread(target=lambda: [server.send(server.receive()) for _ in payloads])
    echo.start()
    for payload in payloads:
        client.send(payload)
        assert client.receive() == payload
    echo.join()
    client.close()
