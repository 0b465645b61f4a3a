"""Accepts the connections of a stage, authenticates their peers, and registers the channels."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence

from deployments.channels.addresses import listen
from deployments.channels.channel import Channel
from deployments.channels.handshake import UnauthenticatedError

RETRY_S = 0.05  # pause after a connection that could not be accepted
MAX_UNAUTHENTICATED = 64  # peers of one address that have not proved themselves yet

logger = logging.getLogger(__name__)


class Acceptor:
    """Listens from its construction on, answers from ``start`` on.

    Args:
        addresses: to listen on.
        secret: of the pipeline.
        roles: that a peer may request.
        register: called with every channel, before its peer learns that it is accepted.
    """

    def __init__(
        self, addresses: Sequence[str], secret: bytes, roles: Collection[str], register: Callable[[Channel], None]
    ) -> None:
        self._secret = secret
        self._roles = roles
        self._register = register
        self._closing = False
        listening = [listen(address) for address in addresses]
        self._servers = [server for server, _ in listening]
        self.addresses = [reached for _, reached in listening]

    def start(self) -> None:
        """Accept connections in daemon threads, one per address."""
        for server in self._servers:
            threading.Thread(target=self._accept, args=(server,), name="stage-accept", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._closing = True
        for server in self._servers:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()

    def _accept(self, server: socket.socket) -> None:
        room = threading.Semaphore(MAX_UNAUTHENTICATED)  # per address: a flood over TCP blocks no peer on this node
        while not self._closing:
            try:
                connection, _ = server.accept()
            except OSError:  # closed, or the peer left at once, or the process has no file descriptor left
                time.sleep(RETRY_S)
                continue
            if not room.acquire(blocking=False):
                connection.close()
                continue
            # A thread per connection: a peer that connects and sends nothing must not block the router.
            thread = threading.Thread(
                target=self._authenticate, args=(connection, room), name="stage-authenticate", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:  # no thread left: the next peer may find one
                logger.warning("connection refused: %s", error)
                room.release()
                connection.close()
                time.sleep(RETRY_S)

    def _authenticate(self, connection: socket.socket, room: threading.Semaphore) -> None:
        try:
            Channel.accept(connection, self._secret, self._roles, self._register)
        except (UnauthenticatedError, RuntimeError) as error:  # RuntimeError: ``register`` found no thread left
            logger.warning("connection refused: %s", error)
            connection.close()
        finally:
            room.release()
