"""The ingress's way to the router that serves now: requests outlive their router and go on at the next one.

Knows how to ask for a router, not which process answers: ``deployments.ingress.client`` brings a call of Serve, tests
bring their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import msgspec

from deployments.metrics.reports import Family, Reporter
from deployments.submission.messages import Failure
from deployments.submission.protocol import (
    BEAT_S,
    SUBMIT,
    Ask,
    Attachment,
    Cancel,
    Command,
    Event,
    Heartbeat,
    Readiness,
    Report,
    RequestEvent,
    Submit,
    decode_events,
    encode,
    encode_message,
)
from deployments.submission.replay_log import ReplayLog
from deployments.submission.served_model import ServedModel
from deployments.transport.channel import AsyncChannel
from engine.errors import ModelChangedError, RequestError, TargetLostError
from engine.events import StepEvent
from engine.request import Request

RETRY_S = 0.1  # pause between two attempts to reach a router
MAX_LOSSES = 5  # routers lost in a row without an event of a request: the request may be what kills them
LOST = "the router is lost"
FRAME_BYTES = 1 << 18  # of commands that share a frame, about: the router decodes a frame without a pause
PATIENCE_S = 60.0  # a router that is replaced takes several seconds, on a busy machine many

logger = logging.getLogger(__name__)


class SubmissionChannel:
    """All requests of one ingress over one connection.

    Args:
        attach: asks for the router that serves now; raises TargetLostError when there is none.
        patience: seconds a request waits for a router.
        beat: seconds between heartbeats.
        reporter: what the router is told of this process's metrics; None: nothing.
        model: what requests are encoded for; follows the router's. None: they name no model.
    """

    def __init__(
        self,
        attach: Callable[[], Awaitable[Attachment]],
        patience: float = PATIENCE_S,
        beat: float = BEAT_S,
        reporter: Reporter | None = None,
        model: ServedModel | None = None,
    ) -> None:
        self._reporter = reporter
        self._attach = attach
        self._model = model
        self._patience = patience
        self._beat = beat
        self._connection: RouterConnection | None = None
        self._leaving: set[RouterConnection] = set()  # to routers that are being replaced and still run requests
        self._attaching = asyncio.Lock()

    async def stream(self, request: Request) -> AsyncGenerator[StepEvent, None]:
        """Events of one request, as they happen; closing the iterator cancels it.

        Raises:
            SpectraError: the router refused the request or failed on it.
            ModelChangedError: another model is served now than the one that the request was encoded for or begun by.
            TargetLostError: no router came up in time, or ``MAX_LOSSES`` routers in a row were lost with the request.
        """
        log = ReplayLog(request)
        losses = 0
        while losses < MAX_LOSSES:
            connection = await self._current()
            async with aclosing(connection.run(log.next_request())) as events:
                async for event in events:
                    losses = 0
                    yield log.take(event)
                    if event.finish_reason is not None:
                        return
            losses += 1
        raise TargetLostError(f"{losses} routers were lost one after the other; send the request again")

    async def keep_reporting(self) -> None:
        """Tell the router at every beat what this process has counted, for as long as the caller lives."""
        while True:
            await asyncio.sleep(self._beat)
            with contextlib.suppress(TargetLostError, ModelChangedError):
                await self._current()
                self.report()

    def report(self) -> None:
        """Tell the router what this process has counted; if there is none, the next report does."""
        connection = self._connection
        if self._reporter is not None and connection is not None and connection.is_open:
            connection.report(self._reporter.take())

    async def check_ready(self) -> None:
        """Ask the router over this channel; returns if it would serve a request sent now.

        Raises:
            TargetLostError: why it would not.
        """
        connection = await self._current()
        await connection.check_ready()

    async def look(self, within: float) -> None:
        """Connect to the router that serves now unless one is connected; a router that takes longer than ``within``
        seconds is left for later.

        Raises:
            ModelChangedError: the model it serves has another tokenizer.
        """
        with contextlib.suppress(TargetLostError, TimeoutError):
            async with asyncio.timeout(within):
                await self._current()

    def close(self) -> None:
        """Drop the connections; requests that still run look for another router."""
        for connection in (self._connection, *self._leaving):
            if connection is not None:
                connection.close()

    async def _current(self) -> RouterConnection:
        if self._connection is not None and self._connection.takes_requests:
            return self._connection
        try:
            async with asyncio.timeout(self._patience), self._attaching:
                while self._connection is None or not self._connection.takes_requests:
                    self._part()
                    self._connection = await self._connect()
                return self._connection
        except TimeoutError:
            raise TargetLostError(f"no router came up within {self._patience:g} s; send the request again") from None

    def _part(self) -> None:
        """Keep the connection to a router that leaves for as long as it holds."""
        self._leaving = {connection for connection in self._leaving if connection.is_open}
        if self._connection is not None and self._connection.is_open:
            self._leaving.add(self._connection)

    async def _connect(self) -> RouterConnection:
        while True:
            try:
                attachment = await self._attach()
                if self._model is not None and attachment.card is not None:
                    self._model.adopt(attachment.card)
                return await RouterConnection.connect(attachment, self._beat)
            except TargetLostError:
                await asyncio.sleep(RETRY_S)


class RouterConnection:
    """One connection to a router, as long as it holds.

    Args:
        channel: authenticated.
        beat: seconds between heartbeats.
    """

    def __init__(self, channel: AsyncChannel, beat: float = BEAT_S) -> None:
        self._channel = channel
        self._heartbeat = Heartbeat(beat)
        self._inboxes: dict[int, asyncio.Queue[StepEvent | Failure | None]] = {}  # by request number; None: lost
        self._questions: dict[int, asyncio.Future[str]] = {}  # by number; to become why the router is not ready
        self._commands: list[msgspec.Raw] = []  # encoded, for the next frame
        self._n_bytes = 0  # of these
        self._next = 0
        self.is_open = True
        self._is_leaving = False
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._beat())]

    @classmethod
    async def connect(cls, attachment: Attachment, beat: float = BEAT_S) -> RouterConnection:
        """Connect to a router; raises TargetLostError when it does not answer."""
        return cls(await AsyncChannel.connect(attachment.address, attachment.secret, SUBMIT), beat)

    @property
    def takes_requests(self) -> bool:
        """Whether the connection holds, and its router is not being replaced."""
        return self.is_open and not self._is_leaving

    async def run(self, request: Request) -> AsyncGenerator[StepEvent, None]:
        """Events of a request; without a last one (that has a finish reason) when the router is lost. Closing the
        iterator cancels the request.

        Raises:
            RequestError: a value of the request cannot be sent.
            SpectraError: the router refused the request or failed on it.
        """
        if not self.is_open:
            return
        number, inbox = self._next, asyncio.Queue[StepEvent | Failure | None]()
        self._next += 1
        try:
            self._send(Submit(number, request))
        except msgspec.EncodeError as error:
            raise RequestError(f"the request cannot be sent to the router: {error}") from error
        self._inboxes[number] = inbox
        try:
            while (item := await inbox.get()) is not None:
                if isinstance(item, Failure):
                    raise item.exception()
                yield item
        finally:
            if self._inboxes.pop(number, None) is not None:  # the router still runs it
                self._send(Cancel(number))

    def report(self, families: list[Family]) -> None:
        """Tell the router what this process has counted."""
        self._send(Report(families))

    async def check_ready(self) -> None:
        """Returns if the router would serve a request sent now.

        Raises:
            TargetLostError: why it would not.
        """
        number, self._next = self._next, self._next + 1
        answer = self._questions[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(Ask(number))
            problem = await answer if self.is_open else LOST
        finally:
            del self._questions[number]
        if problem:
            raise TargetLostError(problem)

    def close(self) -> None:
        """Drop the connection; ``run`` ends for every request."""
        if not self.is_open:
            return
        self.is_open = False
        self._channel.close()
        for task in self._tasks:
            task.cancel()
        inboxes, self._inboxes = self._inboxes, {}
        for inbox in inboxes.values():
            inbox.put_nowait(None)
        for number in self._questions:
            self._answer(number, LOST)

    def _send(self, command: Command) -> None:
        """Commands of one turn of the event loop share a frame; raises EncodeError for this one alone."""
        encoded = encode_message(command)
        if not self._commands:
            asyncio.get_running_loop().call_soon(self._flush)
        self._commands.append(encoded)
        self._n_bytes += len(encoded)
        if self._n_bytes > FRAME_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._commands:
            commands, self._commands, self._n_bytes = self._commands, [], 0
            self._channel.send(encode(commands))

    async def _read(self) -> None:
        try:
            while True:
                for event in decode_events(await self._channel.receive()):
                    self._take(event)
                self._heartbeat.heard()
        except (TargetLostError, msgspec.DecodeError) as error:
            logger.warning("the router is lost: %s", error)
        finally:
            self.close()

    def _take(self, event: Event) -> None:
        if isinstance(event, RequestEvent):
            self._deliver(event.number, event.event or event.failure)
        elif isinstance(event, Readiness):
            self._answer(event.number, event.problem)
        else:
            logger.info("the router is being replaced; new requests go to the next one")
            self._is_leaving = True

    def _deliver(self, number: int, item: StepEvent | Failure | None) -> None:
        is_last = not isinstance(item, StepEvent) or item.finish_reason is not None
        inbox = self._inboxes.pop(number, None) if is_last else self._inboxes.get(number)
        if inbox is not None:  # else the request was cancelled a moment ago
            inbox.put_nowait(item)

    def _answer(self, number: int, problem: str) -> None:
        question = self._questions.get(number)
        if question is not None and not question.done():  # else the caller has stopped waiting
            question.set_result(problem)

    async def _beat(self) -> None:
        while await self._heartbeat.beat():
            self._channel.send(encode([]))
        logger.warning("the router is lost: it is silent")
        self.close()
