"""The router's end of the submission channel: takes ingresses in and runs their requests.

Knows a way to run a request (``Router.stream``), no Ray and no pipeline.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from deployments.metrics.reports import Reports
from deployments.observability import request_id
from deployments.submission.messages import Failure, ModelCard
from deployments.submission.protocol import (
    BEAT_S,
    SUBMIT,
    Ask,
    Attachment,
    Command,
    Event,
    Heartbeat,
    Leaving,
    Readiness,
    Report,
    RequestEvent,
    Submit,
    decode_commands,
    encode,
    encode_message,
)
from deployments.transport.addresses import listen, serve_streams
from deployments.transport.channel import AsyncChannel
from deployments.transport.encryption import tls_context
from deployments.transport.handshake import UnauthenticatedError
from deployments.transport.socket_folder import SocketFolder
from engine.errors import SpectraError, StepFailedError, TargetLostError
from engine.events import StepEvent
from engine.request import Request

LOOK_S = 0.05  # between two looks at what still runs on a server that leaves
MAX_UNREAD = 16 << 20  # bytes a router keeps for an ingress that does not read

logger = logging.getLogger(__name__)

RunRequest = Callable[[Request], AsyncGenerator[StepEvent, None]]
Problem = Callable[[], str]  # why a request sent now would not be served; "": it would be


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
        wanted = f"unix:{self._folder.path}/router" if host is None else f"tcp:{host}:0"
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


class IngressConnection:
    """One ingress and its requests. All events of one turn of the event loop leave in one frame.

    An ingress that disconnects, stops reading, falls silent or sends malformed frames loses its connection, and its
    requests are cancelled at once.

    Args:
        channel: authenticated.
        run, problem, reports: as in ``SubmissionServer``.
        beat: seconds between heartbeats.
    """

    def __init__(self, channel: AsyncChannel, run: RunRequest, problem: Problem, reports: Reports, beat: float) -> None:
        self._channel = channel
        self._run = run
        self._problem = problem
        self._reports = reports
        self._heartbeat = Heartbeat(beat)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._events: list[msgspec.Raw] = []  # encoded, for the next frame
        self._is_over = False

    async def serve(self) -> None:
        """Obey until the ingress disconnects or is cut off; returns once its requests have been cancelled."""
        watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            while True:
                commands = decode_commands(await self._channel.receive())
                self._heartbeat.heard()
                for command in commands:
                    self._obey(command)
                if not commands:
                    self._channel.send(encode([]))
        except TargetLostError as error:
            logger.info("an ingress has gone: %s", error)
        except msgspec.DecodeError as error:
            logger.warning("an ingress was cut off: it sent a malformed command (%s)", error)
        finally:
            watching.cancel()
            self.close()
            self._reports.forget(id(self))
            await asyncio.gather(watching, *self._running.values(), return_exceptions=True)

    @property
    def n_running(self) -> int:
        """Requests of this ingress."""
        return len(self._running)

    def leave(self) -> None:
        """Tell the ingress that its new requests are for the next router."""
        self._send(Leaving())

    def close(self) -> None:
        """Cut the connection and cancel its requests."""
        self._is_over = True
        self._events.clear()
        self._channel.close()
        for task in self._running.values():
            task.cancel()

    def _obey(self, command: Command) -> None:
        if isinstance(command, Submit):
            if command.number in self._running:
                raise msgspec.ValidationError(f"request {command.number} was submitted twice")
            task = asyncio.get_running_loop().create_task(self._stream(command.number, command.request))
            self._running[command.number] = task
            task.add_done_callback(lambda _: self._running.pop(command.number, None))
        elif isinstance(command, Report):
            self._reports.add(id(self), command.families)
        elif isinstance(command, Ask):
            self._send(Readiness(command.number, self._problem()))
        elif command.number in self._running:  # else it has just ended
            self._running[command.number].cancel()

    async def _stream(self, number: int, request: Request) -> None:
        request_id.current.set(request.request_id)  # every request has a task of its own
        try:
            async with aclosing(self._run(request)) as events:
                async for event in events:
                    self._send(RequestEvent(number, event))
        except SpectraError as error:
            self._send(RequestEvent(number, None, Failure.of(error)))
        except Exception:
            logger.exception("the router failed on %s", request.id)
            failure = Failure.of(StepFailedError("the router failed on this request"))
            self._send(RequestEvent(number, None, failure))

    def _send(self, event: Event) -> None:
        """Keep it for the frame that leaves once all requests have run in this turn of the event loop.

        Raises:
            EncodeError: the event cannot be sent; those of other requests can.
        """
        if self._is_over:
            return
        encoded = encode_message(event)
        if not self._events:
            asyncio.get_running_loop().call_soon(self._flush)
        self._events.append(encoded)

    def _flush(self) -> None:
        if self._is_over or not self._events:
            return
        events, self._events = self._events, []
        self._channel.send(encode(events))
        if self._channel.n_unsent > MAX_UNREAD:
            logger.warning("an ingress was cut off: it has left %d bytes unread", self._channel.n_unsent)
            self.close()

    async def _watch(self) -> None:
        while await self._heartbeat.beat():
            pass
        logger.warning("an ingress was cut off: it is silent")
        self.close()
