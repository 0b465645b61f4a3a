"""The ingress's end of one connection to one router: commands go out, events of requests come back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

import msgspec

from deployments.channels.async_channel import AsyncChannel
from deployments.metrics.reports import MetricFamily
from deployments.submission.messages import RequestFailure
from deployments.submission.protocol import (
    BEAT_S,
    SUBMIT,
    Attachment,
    Cancel,
    Command,
    Event,
    Heartbeat,
    MetricsReport,
    Readiness,
    ReadinessQuery,
    RequestEvent,
    Submit,
    decode_events,
    encode,
    encode_message,
)
from engine.errors import RequestError, TargetLostError
from engine.events import StepEvent
from engine.request import Request

LOST = "the router is lost"
FRAME_BYTES = 1 << 18  # of commands that share a frame, about: the router decodes a frame without a pause

logger = logging.getLogger(__name__)


class RouterConnection:
    """One connection to a router, as long as it holds.

    Args:
        channel: authenticated.
        beat: seconds between heartbeats.
    """

    def __init__(self, channel: AsyncChannel, beat: float = BEAT_S) -> None:
        self._channel = channel
        self._heartbeat = Heartbeat(beat)
        self._inboxes: dict[int, asyncio.Queue[StepEvent | RequestFailure | None]] = {}  # by request number; None: lost
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
        number, inbox = self._next, asyncio.Queue[StepEvent | RequestFailure | None]()
        self._next += 1
        try:
            self._send(Submit(number, request))
        except msgspec.EncodeError as error:
            raise RequestError(f"the request cannot be sent to the router: {error}") from error
        self._inboxes[number] = inbox
        try:
            while (item := await inbox.get()) is not None:
                if isinstance(item, RequestFailure):
                    raise item.exception()
                yield item
        finally:
            if self._inboxes.pop(number, None) is not None:  # the router still runs it
                self._send(Cancel(number))

    def report(self, families: list[MetricFamily]) -> None:
        """Tell the router what this process has counted."""
        self._send(MetricsReport(families))

    async def check_ready(self) -> None:
        """Returns if the router would serve a request sent now.

        Raises:
            TargetLostError: why it would not.
        """
        number, self._next = self._next, self._next + 1
        answer = self._questions[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(ReadinessQuery(number))
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

    def _deliver(self, number: int, item: StepEvent | RequestFailure | None) -> None:
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
