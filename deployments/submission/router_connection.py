"""The ingress's end of its connection to a router: sends commands, receives the events of its requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

import msgspec

from deployments.channels.async_channel import AsyncChannel
from deployments.metrics.reports import MetricFamily
from deployments.submission.connection import PeerConnection
from deployments.submission.messages import RequestFailure
from deployments.submission.protocol import (
    BEAT_S,
    SUBMIT,
    AnswerReference,
    Attachment,
    Cancel,
    Command,
    Event,
    Follow,
    MetricsReport,
    Readiness,
    ReadinessQuery,
    RequestEvent,
    Submit,
    decode_events,
    encode,
)
from engine.errors import RequestError, TargetLostError
from engine.events import StepEvent
from engine.request import Request

LOST = "the router is lost"
FRAME_BYTES = 1 << 18  # a frame with more bytes of commands leaves at once: the router decodes a frame in one go

logger = logging.getLogger(__name__)


class RouterConnection(PeerConnection):
    """Connection to one router.

    Args:
        channel: authenticated.
        beat: seconds between heartbeats.
    """

    def __init__(self, channel: AsyncChannel, beat: float = BEAT_S) -> None:
        super().__init__(channel, beat, "router")
        self._inboxes: dict[int, asyncio.Queue[StepEvent | RequestFailure | None]] = {}  # by request number; None: lost
        self._readiness: dict[int, asyncio.Future[str]] = {}  # by query number; the result is a ``Readiness.problem``
        self._next_number = 0
        self._is_draining = False
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._watch())]

    @classmethod
    async def connect(cls, attachment: Attachment, beat: float = BEAT_S) -> RouterConnection:
        """Connect to a router; raises TargetLostError when it does not answer."""
        return cls(await AsyncChannel.connect(attachment.address, attachment.secret, SUBMIT), beat)

    @property
    def accepts_requests(self) -> bool:
        """Whether the connection is open and its router is not being replaced."""
        return self.is_open and not self._is_draining

    async def run(self, request: Request | AnswerReference) -> AsyncGenerator[StepEvent, None]:
        """Events of a request; they end without a finish reason when the router is lost.

        Closing the iterator cancels the request.

        Raises:
            RequestError: a value of the request cannot be encoded.
            SpectraError: the router refused the request or failed on it.
        """
        if not self.is_open:
            return
        number, inbox = self._take_number(), asyncio.Queue[StepEvent | RequestFailure | None]()
        try:
            self._send(Submit(number, request) if isinstance(request, Request) else Follow(number, request))
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

    def report_metrics(self, families: list[MetricFamily]) -> None:
        """Send a report of this process's metrics."""
        self._send(MetricsReport(families))

    async def check_ready(self) -> None:
        """Return if the router would serve a request sent now.

        Raises:
            TargetLostError: with the reason why it would not.
        """
        number = self._take_number()
        answer = self._readiness[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(ReadinessQuery(number))
            problem = await answer if self.is_open else LOST
        finally:
            del self._readiness[number]
        if problem:
            raise TargetLostError(problem)

    def close(self) -> None:
        """Drop the connection; ``run`` ends for every request."""
        if not self.is_open:
            return
        super().close()
        for task in self._tasks:
            task.cancel()
        inboxes, self._inboxes = self._inboxes, {}
        for inbox in inboxes.values():
            inbox.put_nowait(None)
        for number in self._readiness:
            self._answer_query(number, LOST)

    def _take_number(self) -> int:
        self._next_number += 1
        return self._next_number - 1

    def _send(self, message: Command | Event) -> None:
        super()._send(message)
        if self._n_bytes > FRAME_BYTES:
            self._flush()

    async def _read(self) -> None:
        try:
            while True:
                for event in decode_events(await self._receive()):
                    self._handle(event)
        except (TargetLostError, msgspec.DecodeError) as error:
            logger.warning("%s: %s", LOST, error)
        finally:
            self.close()

    def _handle(self, event: Event) -> None:
        if isinstance(event, RequestEvent):
            self._deliver(event.number, event.event or event.failure)
        elif isinstance(event, Readiness):
            self._answer_query(event.number, event.problem)
        else:
            logger.info("the router is being replaced; new requests go to the next one")
            self._is_draining = True

    def _deliver(self, number: int, item: StepEvent | RequestFailure | None) -> None:
        is_last = not isinstance(item, StepEvent) or item.finish_reason is not None
        inbox = self._inboxes.pop(number, None) if is_last else self._inboxes.get(number)
        if inbox is not None:  # else the request has been cancelled
            inbox.put_nowait(item)

    def _answer_query(self, number: int, problem: str) -> None:
        query = self._readiness.get(number)
        if query is not None and not query.done():  # else the caller has stopped waiting
            query.set_result(problem)

    def _on_beat(self) -> None:
        self._channel.send(encode([]))
