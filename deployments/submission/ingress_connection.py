"""The router's end of its connection to an ingress: receives commands, sends the events of requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from deployments.channels.async_channel import AsyncChannel
from deployments.metrics.reports import Reports
from deployments.observability.logs import current_request_id
from deployments.submission.connection import PeerConnection
from deployments.submission.messages import RequestFailure
from deployments.submission.protocol import (
    AnswerReference,
    Command,
    Follow,
    MetricsReport,
    Readiness,
    ReadinessQuery,
    RequestEvent,
    RouterDraining,
    Submit,
    decode_commands,
    encode,
)
from engine.errors import SpectraError, StepFailedError, TargetLostError
from engine.events import StepEvent
from engine.request import Request

# Bytes buffered for an ingress that does not read, in addition to the longest frame. Log-probabilities of a prompt are
# some 16 MB, and an ingress does not read while it decodes those of another request.
MAX_UNREAD = 64 << 20
# Answers that are read again come at once, not as they are generated: above this backlog they wait.
REPLAY_UNREAD = 1 << 20
REPLAY_PAUSE_S = 0.05

logger = logging.getLogger(__name__)

RunRequest = Callable[[Any], AsyncGenerator[StepEvent, None]]  # of a Request; an answer keeper's, of a reference
Problem = Callable[[], str]  # why a request sent now would not be served; "": it would be


class IngressConnection(PeerConnection):
    """Connection to one ingress, and its requests.

    An ingress that disconnects, stops reading, falls silent or sends a malformed frame loses its connection. The router
    then cancels its requests at once.

    Args:
        channel: authenticated.
        run, problem, reports: as in ``SubmissionServer``.
        beat: seconds between heartbeats.
    """

    def __init__(self, channel: AsyncChannel, run: RunRequest, problem: Problem, reports: Reports, beat: float) -> None:
        super().__init__(channel, beat, "ingress")
        self._run = run
        self._problem = problem
        self._reports = reports
        self._running: dict[int, asyncio.Task[None]] = {}  # by request number
        self._longest = 0  # bytes of the longest frame since the buffer was empty

    async def serve(self) -> None:
        """Run commands until the connection ends; returns once all requests have been cancelled."""
        watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            while True:
                commands = decode_commands(await self._receive())
                for command in commands:
                    self._handle(command)
                if not commands:
                    self._channel.send(encode([]))
        except TargetLostError as error:
            logger.info("an ingress has disconnected: %s", error)
        except msgspec.DecodeError as error:
            logger.warning("an ingress is disconnected: it sent a malformed command (%s)", error)
        finally:
            watching.cancel()
            self.close()
            self._reports.forget(id(self))
            await asyncio.gather(watching, *self._running.values(), return_exceptions=True)

    @property
    def n_running(self) -> int:
        """Requests of this ingress."""
        return len(self._running)

    def send_draining(self) -> None:
        """Tell the ingress to send new requests to the next router."""
        self._send(RouterDraining())

    def close(self) -> None:
        """Drop the connection and cancel its requests."""
        super().close()
        for task in self._running.values():
            task.cancel()

    def _handle(self, command: Command) -> None:
        if isinstance(command, Submit | Follow):
            if command.number in self._running:
                raise msgspec.ValidationError(f"request {command.number} was submitted twice")
            task = asyncio.get_running_loop().create_task(self._stream(command.number, command.request))
            self._running[command.number] = task
            task.add_done_callback(lambda _: self._running.pop(command.number, None))
        elif isinstance(command, MetricsReport):
            self._reports.add(id(self), command.families)
        elif isinstance(command, ReadinessQuery):
            self._send(Readiness(command.number, self._problem()))
        elif command.number in self._running:  # else it has just ended
            self._running[command.number].cancel()

    async def _stream(self, number: int, request: Request | AnswerReference) -> None:
        current_request_id.set(request.request_id)  # each request has its own task
        try:
            async with aclosing(self._run(request)) as events:
                async for event in events:
                    self._send(RequestEvent(number, event))
                    if isinstance(request, AnswerReference):
                        await self._wait_for_room()
            if isinstance(request, AnswerReference):  # one page of it: the client submits the rest
                self._send(RequestEvent(number, None))
        except SpectraError as error:
            self._send(RequestEvent(number, None, RequestFailure.of(error)))
        except Exception:
            logger.exception("the router failed on %s", request.id)
            failure = RequestFailure.of(StepFailedError("the router failed on this request"))
            self._send(RequestEvent(number, None, failure))

    async def _wait_for_room(self) -> None:
        while self._n_bytes + self._channel.n_unsent > REPLAY_UNREAD:
            await asyncio.sleep(REPLAY_PAUSE_S)

    def _flush(self) -> None:
        unread = self._channel.n_unsent
        self._longest = self._longest if unread else 0
        if self.is_open and unread - self._longest > MAX_UNREAD:  # an ingress that reads may still be at a long frame
            logger.warning("an ingress is disconnected: it has left %d bytes unread", unread)
            self.close()
            return
        self._longest = max(self._longest, self._n_bytes)
        super()._flush()
