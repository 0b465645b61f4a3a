"""The ingress's client of the router: a request survives the loss of its router and resumes on the next one.

The caller brings the way to find a router: ``deployments.ingress.client`` a call to Serve, tests their own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from deployments.metrics.reports import Reporter
from deployments.submission.messages import ModelCard
from deployments.submission.protocol import BEAT_S, AnswerReference, Attachment
from deployments.submission.resume import FollowedAnswer, ResumableRequest
from deployments.submission.router_connection import RouterConnection
from engine.errors import ModelChangedError, TargetLostError
from engine.events import StepEvent
from engine.request import Request

RETRY_S = 0.1  # pause between two attempts to reach a router
MAX_LOSSES = 5  # routers lost in a row without an event of a request: the request may be the cause
PATIENCE_S = 60.0  # replacing a router takes several seconds, on a busy machine many


class ServedModel:
    """The model that an ingress encodes requests for: the router's, as long as the tokenizer stays the same.

    Args:
        card: of the router's model.
    """

    def __init__(self, card: ModelCard) -> None:
        self.card = card
        self.tokenizer = ""  # hash of the tokenizer that the edge encodes with; "": unknown
        self.mismatch = ""  # why this ingress cannot encode for the router's model; "": it can

    def update(self, card: ModelCard) -> None:
        """Encode for the model of ``card`` from now on; requests encoded earlier name the earlier model.

        Raises:
            ModelChangedError: the model has another tokenizer than the edge; the card stays as it was.
        """
        found, ours = card.identity.tokenizer, self.tokenizer
        if found and ours and found != ours:
            self.mismatch = (
                f"the model that is served now has another tokenizer ({found[:12]} instead of {ours[:12]}) than this "
                "replica, which is being replaced; send the request again"
            )
            raise ModelChangedError(self.mismatch)
        self.mismatch, self.card = "", card


class SubmissionClient:
    """Sends all requests of one ingress over one connection.

    Args:
        attach: finds the current router; raises TargetLostError when there is none.
        patience: seconds a request waits for a router.
        beat: seconds between heartbeats.
        reporter: reports this process's metrics to the router; None: no reports.
        model: that requests are encoded for, updated from the router's; None: requests name no model.
        peer: name of the other end in errors.
    """

    def __init__(
        self,
        attach: Callable[[], Awaitable[Attachment]],
        patience: float = PATIENCE_S,
        beat: float = BEAT_S,
        reporter: Reporter | None = None,
        model: ServedModel | None = None,
        peer: str = "router",
    ) -> None:
        self._peer = peer
        self._reporter = reporter
        self._attach = attach
        self._model = model
        self._patience = patience
        self._beat = beat
        self._connection: RouterConnection | None = None
        self._draining: set[RouterConnection] = set()  # to routers that are being replaced and still run requests
        self._connecting = asyncio.Lock()

    async def stream(self, request: Request | AnswerReference) -> AsyncGenerator[StepEvent, None]:
        """Events of one request, or of an answer that is followed, as they happen; closing the iterator cancels it.

        Raises:
            SpectraError: the router refused the request or failed on it.
            ModelChangedError: the request was encoded for, or begun by, another model than the current one.
            TargetLostError: no router came up in time, or ``MAX_LOSSES`` routers in a row were lost with the request.
        """
        resumable = ResumableRequest(request) if isinstance(request, Request) else FollowedAnswer(request)
        losses = 0
        while losses < MAX_LOSSES:
            connection = await self._connect_current()
            async with aclosing(connection.run(resumable.next_submission())) as events:
                async for event in events:
                    losses = 0
                    yield resumable.record(event)
                    if event.finish_reason is not None:
                        return
            losses += 1
        raise TargetLostError(f"{losses} {self._peer}s were lost one after the other; send the request again")

    async def keep_reporting(self) -> None:
        """Report this process's metrics to the router at every beat, until cancelled."""
        while True:
            await asyncio.sleep(self._beat)
            with contextlib.suppress(TargetLostError, ModelChangedError):
                await self._connect_current()
                self.report_metrics()

    def report_metrics(self) -> None:
        """Report this process's metrics now; without a connection the next report includes them."""
        connection = self._connection
        if self._reporter is not None and connection is not None and connection.is_open:
            connection.report_metrics(self._reporter.take())

    async def check_ready(self) -> None:
        """Return if the router would serve a request sent now.

        Raises:
            TargetLostError: with the reason why it would not.
        """
        connection = await self._connect_current()
        await connection.check_ready()

    async def check_model(self, timeout: float) -> None:
        """Connect to the current router if none is connected; give up without an error after ``timeout`` seconds.

        Raises:
            ModelChangedError: the router's model has another tokenizer.
        """
        with contextlib.suppress(TargetLostError, TimeoutError):
            async with asyncio.timeout(timeout):
                await self._connect_current()

    def close(self) -> None:
        """Drop the connections; running requests look for another router."""
        for connection in (self._connection, *self._draining):
            if connection is not None:
                connection.close()

    async def _connect_current(self) -> RouterConnection:
        """The connection to the current router, made if there is none."""
        if self._connection is not None and self._connection.accepts_requests:
            return self._connection
        try:
            async with asyncio.timeout(self._patience), self._connecting:
                while self._connection is None or not self._connection.accepts_requests:
                    self._keep_draining_connection()
                    self._connection = await self._connect()
                return self._connection
        except TimeoutError:
            raise TargetLostError(
                f"no {self._peer} came up within {self._patience:g} s; send the request again"
            ) from None

    def _keep_draining_connection(self) -> None:
        """Keep the connection to a router that is being replaced while it still runs requests."""
        self._draining = {connection for connection in self._draining if connection.is_open}
        if self._connection is not None and self._connection.is_open:
            self._draining.add(self._connection)

    async def _connect(self) -> RouterConnection:
        while True:
            try:
                attachment = await self._attach()
                if self._model is not None and attachment.card is not None:
                    self._model.update(attachment.card)
                return await RouterConnection.connect(attachment, self._beat)
            except TargetLostError:
                await asyncio.sleep(RETRY_S)
