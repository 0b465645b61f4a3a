"""The ingress's way to the router that serves now: requests outlive their router and go on at the next one.

Knows how to ask for a router, not who is asked: ``deployments.ingress.client`` brings a call of Serve, tests bring
their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from deployments.submission.link import Link
from deployments.submission.messages import Failure, SubmitRequest
from deployments.submission.protocol import BEAT_S, Attachment
from deployments.submission.resumption import Resumption
from engine.errors import TargetLostError
from engine.events import StepEvent

ATTACH_AGAIN_S = 0.1  # pause between two attempts to reach a router
MAX_LOSSES = 5  # routers lost in a row without a word on a request: it may be what kills them
PATIENCE_S = 60.0  # a router that is replaced takes several seconds, on a busy machine many


class SubmissionChannel:
    """All requests of one ingress over one connection.

    Args:
        attach: asks for the router that serves now; raises TargetLostError when there is none.
        patience: seconds a request waits for a router.
        beat: seconds between heartbeats.
    """

    def __init__(
        self, attach: Callable[[], Awaitable[Attachment]], patience: float = PATIENCE_S, beat: float = BEAT_S
    ) -> None:
        self._attach = attach
        self._patience = patience
        self._beat = beat
        self._link: Link | None = None
        self._attaching = asyncio.Lock()

    async def stream(self, request: SubmitRequest) -> AsyncGenerator[StepEvent, None]:
        """Events of one request, as they happen; closing the iterator cancels it.

        Raises:
            SpectraError: what the router said.
            TargetLostError: no router came up in time, or several died of it.
        """
        resumption = Resumption(request)
        losses = 0
        while losses < MAX_LOSSES:
            mailbox = (await self._current()).open(resumption.next_request())
            try:
                while (item := await mailbox.get()) is not None:
                    losses = 0
                    if isinstance(item, Failure):
                        raise item.exception()
                    yield resumption.take(item)
                    if item.finish_reason is not None:
                        return
            finally:
                mailbox.close()
            losses += 1
        raise TargetLostError(f"{losses} routers were lost one after the other; send the request again")

    def close(self) -> None:
        """Drop the connection; requests that still run look for another router."""
        if self._link is not None:
            self._link.close()

    async def _current(self) -> Link:
        if self._link is not None and self._link.is_open:
            return self._link
        try:
            async with asyncio.timeout(self._patience), self._attaching:
                while self._link is None or not self._link.is_open:
                    self._link = await self._connect()
                return self._link
        except TimeoutError:
            raise TargetLostError(f"no router came up within {self._patience:g} s; send the request again") from None

    async def _connect(self) -> Link:
        while True:
            try:
                return await Link.connect(await self._attach(), self._beat)
            except TargetLostError:
                await asyncio.sleep(ATTACH_AGAIN_S)
