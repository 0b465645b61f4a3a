"""The router's end of the submission channel: takes ingresses in and runs their requests.

Knows a way to run a request (``Router.stream``), no Ray and no pipeline.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable

from deployments.channels.addresses import listen, serve_streams, tcp
from deployments.channels.async_channel import AsyncChannel
from deployments.channels.handshake import UnauthenticatedError
from deployments.channels.socket_folder import SocketFolder
from deployments.channels.tls import tls_context
from deployments.metrics.reports import Reports
from deployments.submission.ingress_connection import IngressConnection, Problem, RunRequest
from deployments.submission.messages import ModelCard
from deployments.submission.protocol import (
    BEAT_S,
    SUBMIT,
    Attachment,
)
from engine.errors import TargetLostError

LOOK_S = 0.05  # between two looks at what still runs on a server that leaves

logger = logging.getLogger(__name__)


class SubmissionServer:
    """Listens for ingresses: on a Unix socket for those of this machine, on TCP once an ingress of another one asks.

    Args:
        run: starts a request; closing the generator cancels it.
        problem: asked when an ingress asks whether a request sent now would be served.
        beat: seconds between heartbeats.
        reports: takes what ingresses have counted; None: it is dropped.
        card: of the model, for the ingresses.
    """

    def __init__(
        self,
        run: RunRequest,
        problem: Problem = str,
        beat: float = BEAT_S,
        reports: Reports | None = None,
        card: ModelCard | None = None,
    ) -> None:
        self._run = run
        self._problem = problem
        self._beat = beat
        self._reports = reports or Reports()
        self._card = card
        self._secret = secrets.token_bytes(32)
        self._folder = SocketFolder()
        self._servers: dict[str, asyncio.Server] = {}  # by the address that was asked for
        self._addresses: dict[str, str] = {}
        self._connections: set[IngressConnection] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._is_leaving = False
        self._is_cut = False

    async def attachment(self, host: str | None = None) -> Attachment:
        """What an ingress needs to connect; ``host`` is this node's address when the ingress is on another one.

        Raises:
            TargetLostError: this router is leaving.
        """
        if self._is_leaving:
            raise TargetLostError("this router is being replaced")
        wanted = f"unix:{self._folder.path}/router" if host is None else tcp(host)
        if wanted not in self._addresses:
            listening, self._addresses[wanted] = listen(wanted)
            tls = None if host is None else tls_context(self._secret, True)
            self._servers[wanted] = await serve_streams(listening, self._accepted, tls)
        return Attachment(self._addresses[wanted], self._secret, self._card)

    @property
    def n_running(self) -> int:
        """Requests of all ingresses."""
        return sum(connection.n_running for connection in self._connections)

    def leave(self) -> None:
        """Stop listening and send every ingress to the next router with its new requests; those that run go on here."""
        if self._is_leaving:
            return
        self._is_leaving = True
        for server in self._servers.values():
            server.close()
        for connection in self._connections:
            connection.leave()

    async def drain(self, grace: float, is_served: Callable[[], bool]) -> None:
        """Leave, and cut once no request runs, or ``is_served`` says that none is served here any more, or ``grace``
        seconds have passed."""
        self.leave()
        deadline = time.monotonic() + grace
        while self.n_running and is_served() and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_S)
        self.cut()

    def cut(self) -> None:
        """Leave, and drop every ingress: it resubmits what was running to the next router."""
        if self._is_cut:
            return
        self._is_cut = True
        self.leave()
        for connection in self._connections:
            connection.close()
        for task in self._serving:
            task.cancel()
        self._folder.remove()

    async def close(self) -> None:
        """Cut, and wait until every request has been cancelled."""
        self.cut()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection: IngressConnection | None = None
        try:
            if not self._is_leaving:
                channel = await AsyncChannel.accept(reader, writer, self._secret, (SUBMIT,))
                connection = IngressConnection(channel, self._run, self._problem, self._reports, self._beat)
                self._connections.add(connection)
                if self._is_leaving:
                    connection.leave()
                await connection.serve()
        except UnauthenticatedError as error:
            logger.warning("connection refused: %s", error)
        except OSError as error:  # the peer left at once
            logger.info("an ingress has gone: %s", error)
        finally:
            if connection is not None:
                self._connections.discard(connection)
            writer.transport.abort()
