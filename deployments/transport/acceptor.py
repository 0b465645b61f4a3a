"""Where a stage is reached: it takes connections in, and hands on those of peers that know the pipeline's secret."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence

from deployments.transport.channel import Channel, UnauthenticatedError, listen

ACCEPT_AGAIN_S = 0.05  # pause after a connection that could not be taken
MAX_STRANGERS = 64  # peers of one address that have not proved themselves yet

logger = logging.getLogger(__name__)


class Reception:
    """Listens from the start, answers from ``start`` on.

    Args:
        wanted: addresses to listen on.
        secret: of the pipeline.
        register: called with every channel before its peer learns that it is welcome.
    """

    def __init__(self, wanted: Sequence[str], secret: bytes, register: Callable[[Channel], None]) -> None:
        self._secret = secret
        self._register = register
        self._closing = False
        listening = [listen(address) for address in wanted]
        self._servers = [server for server, _ in listening]
        self.addresses = [reached for _, reached in listening]

    def start(self) -> None:
        """Take connections in, by daemon threads."""
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
        room = threading.Semaphore(MAX_STRANGERS)  # an address each: who floods TCP keeps no neighbour of this node out
        while not self._closing:
            try:
                connection, _ = server.accept()
            except OSError:  # closed, or a peer that went at once, or no file descriptor left
                time.sleep(ACCEPT_AGAIN_S)
                continue
            if not room.acquire(blocking=False):
                connection.close()
                continue
            # A thread each: a stranger who connects and says nothing must not keep the router waiting.
            thread = threading.Thread(target=self._welcome, args=(connection, room), name="stage-welcome", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no thread left: the next peer may find one
                logger.warning("connection refused: %s", error)
                room.release()
                connection.close()
                time.sleep(ACCEPT_AGAIN_S)

    def _welcome(self, connection: socket.socket, room: threading.Semaphore) -> None:
        try:
            Channel.accept(connection, self._secret, self._register)
        except (UnauthenticatedError, RuntimeError) as error:  # the latter: no thread left for what it is there for
            logger.warning("connection refused: %s", error)
            connection.close()
        finally:
            room.release()
