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

from deployments.metrics.reports import Reporter
from deployments.submission.protocol import (
    BEAT_S,
    Attachment,
)
from deployments.submission.replay_log import ReplayLog
from deployments.submission.router_connection import RouterConnection
from deployments.submission.served_model import ServedModel
from engine.errors import ModelChangedError, TargetLostError
from engine.events import StepEvent
from engine.request import Request

RETRY_S = 0.1  # pause between two attempts to reach a router
MAX_LOSSES = 5  # routers lost in a row without an event of a request: the request may be what kills them
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
