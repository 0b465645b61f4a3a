"""The router's end of one connection to one ingress: commands come in, events of requests go out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from deployments.channels.async_channel import AsyncChannel
from deployments.metrics.reports import Reports
from deployments.observability import request_id
from deployments.submission.messages import RequestFailure
from deployments.submission.protocol import (
    Command,
    Event,
    Heartbeat,
    MetricsReport,
    Readiness,
    ReadinessQuery,
    RequestEvent,
    RouterDraining,
    Submit,
    decode_commands,
    encode,
    encode_message,
)
from engine.errors import SpectraError, StepFailedError, TargetLostError
from engine.events import StepEvent
from engine.request import Request

# Bytes that a router keeps for an ingress that does not read, beside the longest frame: log-probabilities of a prompt
# are some 16 MB, and an ingress does not read while it decodes those of another.
MAX_UNREAD = 64 << 20

logger = logging.getLogger(__name__)

RunRequest = Callable[[Request], AsyncGenerator[StepEvent, None]]
Problem = Callable[[], str]  # why a request sent now would not be served; "": it would be


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
        self._longest = 0  # bytes of the longest frame since all had been sent
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
        self._send(RouterDraining())

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
        elif isinstance(command, MetricsReport):
            self._reports.add(id(self), command.families)
        elif isinstance(command, ReadinessQuery):
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
            self._send(RequestEvent(number, None, RequestFailure.of(error)))
        except Exception:
            logger.exception("the router failed on %s", request.id)
            failure = RequestFailure.of(StepFailedError("the router failed on this request"))
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
        unread = self._channel.n_unsent
        self._longest = self._longest if unread else 0
        if unread - self._longest > MAX_UNREAD:  # an ingress that reads may still be at a long frame
            logger.warning("an ingress was cut off: it has left %d bytes unread", unread)
            self.close()
            return
        events, self._events = self._events, []
        frame = encode(events)
        self._longest = max(self._longest, len(frame))
        self._channel.send(frame)

    async def _watch(self) -> None:
        while await self._heartbeat.beat():
            pass
        logger.warning("an ingress was cut off: it is silent")
        self.close()
