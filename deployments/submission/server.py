"""The router's server of requests: accepts connections of ingresses and runs their requests.

Knows a function that runs a request (``Router.stream``), but neither Ray nor pipelines.
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
from deployments.submission.protocol import BEAT_S, SUBMIT, Attachment
from engine.errors import TargetLostError

DRAIN_CHECK_S = 0.05  # between two checks whether requests still run while draining

logger = logging.getLogger(__name__)


class SubmissionServer:
    """Listens on a Unix socket for ingresses of this node, and on TCP once an ingress of another node asks.

    Args:
        run: starts a request; closing the generator cancels it.
        problem: returns why a request sent now would not be served; "": it would be.
        beat: seconds between heartbeats.
        reports: collects the metrics of ingresses; None: they are dropped.
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
        self._servers: dict[str, asyncio.Server] = {}  # by requested address
        self._addresses: dict[str, str] = {}  # requested address -> actual one
        self._connections: set[IngressConnection] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._is_closed = False

    async def attachment(self, host: str | None = None) -> Attachment:
        """Address and secret for an ingress; ``host`` is this node's address if the ingress runs on another node.

        Raises:
            TargetLostError: this router is being replaced.
        """
        if self._is_draining:
            raise TargetLostError("this router is being replaced")
        requested = f"unix:{self._folder.path}/router" if host is None else tcp(host)
        if requested not in self._addresses:
            listening, self._addresses[requested] = listen(requested)
            tls = None if host is None else tls_context(self._secret, True)
            self._servers[requested] = await serve_streams(listening, self._accept, tls)
        return Attachment(self._addresses[requested], self._secret, self._card)

    @property
    def n_running(self) -> int:
        """Requests of all ingresses."""
        return sum(connection.n_running for connection in self._connections)

    async def drain(self, grace: float, is_served: Callable[[], bool]) -> None:
        """Send new requests to the next router and let running ones end, then disconnect every ingress.

        Args:
            grace: seconds that running requests have at most.
            is_served: False once no request is served here any more.
        """
        self._stop_accepting()
        deadline = time.monotonic() + grace
        while self.n_running and is_served() and time.monotonic() < deadline:
            await asyncio.sleep(DRAIN_CHECK_S)
        self.disconnect()

    def disconnect(self) -> None:
        """Stop accepting and disconnect every ingress, which resubmits its running requests to the next router."""
        if self._is_closed:
            return
        self._is_closed = True
        self._stop_accepting()
        for connection in self._connections:
            connection.close()
        for task in self._serving:
            task.cancel()
        self._folder.remove()

    async def close(self) -> None:
        """Disconnect, and wait until every request has been cancelled."""
        self.disconnect()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _stop_accepting(self) -> None:
        """Stop listening, and send the ingresses to the next router with new requests."""
        if self._is_draining:
            return
        self._is_draining = True
        for server in self._servers.values():
            server.close()
        for connection in self._connections:
            connection.send_draining()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)  # the loop keeps only weak references
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection: IngressConnection | None = None
        try:
            if not self._is_draining:
                channel = await AsyncChannel.accept(reader, writer, self._secret, (SUBMIT,))
                connection = IngressConnection(channel, self._run, self._problem, self._reports, self._beat)
                self._connections.add(connection)
                if self._is_draining:
                    connection.send_draining()
                await connection.serve()
        except UnauthenticatedError as error:
            logger.warning("connection refused: %s", error)
        except OSError as error:  # the peer has left already
            logger.info("an ingress has disconnected: %s", error)
        finally:
            if connection is not None:
                self._connections.discard(connection)
            writer.transport.abort()
