"""Where ingresses connect to their router: listens, lets in who knows the secret, and hands over.

Knows a way to run a request (``Router.stream``), no Ray and no pipeline.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable

from deployments.submission.ingress_session import IngressConnection, RunRequest
from deployments.submission.protocol import BEAT_S, SUBMIT, Attachment
from deployments.transport.addresses import READ_AHEAD, listen
from deployments.transport.channel import AsyncChannel
from deployments.transport.handshake import UnauthenticatedError
from deployments.transport.socket_folder import SocketFolder

logger = logging.getLogger(__name__)


class SubmissionServer:
    """Listens for ingresses; a Unix socket for those of this machine, TCP once another one asks.

    Args:
        run: starts a request.
        beat: seconds between heartbeats.
    """

    def __init__(self, run: RunRequest, beat: float = BEAT_S) -> None:
        self._run = run
        self._beat = beat
        self._secret = secrets.token_bytes(32)
        self._folder = SocketFolder()
        self._servers: dict[str, asyncio.Server] = {}  # by the address that was asked for
        self._addresses: dict[str, str] = {}
        self._connections: set[IngressConnection] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._is_cut = False

    def __len__(self) -> int:
        """Ingresses that are connected."""
        return len(self._connections)

    async def attachment(self, host: str | None = None) -> Attachment:
        """What an ingress needs to connect; ``host`` is this node's address when the ingress is on another one."""
        wanted = f"unix:{self._folder.path}/router" if host is None else f"tcp:{host}:0"
        if wanted not in self._addresses:
            listening, self._addresses[wanted] = listen(wanted)
            self._servers[wanted] = await _start(listening, self._welcome)
        return Attachment(self._addresses[wanted], self._secret)

    def cut(self) -> None:
        """Stop listening and let every ingress go: it resubmits what was running to the next router."""
        if self._is_cut:
            return
        self._is_cut = True
        for server in self._servers.values():
            server.close()
        for connection in self._connections:
            connection.close()
        for task in self._serving:
            task.cancel()
        self._folder.remove()

    async def close(self) -> None:
        """Cut, and wait until every request has been cancelled."""
        self.cut()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._handle(reader, writer))
        self._serving.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._serving.discard)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not self._is_cut:
                channel = await AsyncChannel.accept(reader, writer, self._secret, (SUBMIT,))
                await self._serve(IngressConnection(channel, writer.transport, self._run, self._beat))
        except UnauthenticatedError as error:
            logger.warning("connection refused: %s", error)
        except OSError as error:  # from a peer that went at once
            logger.info("an ingress has gone: %s", error)
        finally:
            writer.transport.abort()

    async def _serve(self, connection: IngressConnection) -> None:
        self._connections.add(connection)
        try:
            await connection.serve()
        finally:
            self._connections.discard(connection)


async def _start(
    listening: socket.socket, welcome: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]
) -> asyncio.Server:
    if listening.family == socket.AF_UNIX:
        return await asyncio.start_unix_server(welcome, sock=listening, limit=READ_AHEAD)
    return await asyncio.start_server(welcome, sock=listening, limit=READ_AHEAD)
