"""One ingress as the router sees it: its requests run here, and leave nothing behind when it goes.

Knows a way to run a request (``Router.stream``) and a channel, neither Ray nor how ingresses come to be connected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from deployments.submission.messages import Failure, SubmitRequest
from deployments.submission.protocol import News, Order, Silence, Submit, decode_orders, encode_news
from deployments.transport.channel import AsyncChannel
from engine.errors import SpectraError, StepFailedError, TargetLostError
from engine.events import StepEvent

MAX_UNREAD = 16 << 20  # bytes a router keeps for an ingress that does not read

logger = logging.getLogger(__name__)

RunRequest = Callable[[SubmitRequest], AsyncGenerator[StepEvent, None]]


class IngressConnection:
    """One ingress and its requests. All events of one turn of the event loop leave in one frame.

    An ingress that goes, stops reading, stops speaking or speaks nonsense loses its connection, and its requests are
    cancelled at once.

    Args:
        channel: authenticated.
        transport: below it.
        run: starts a request; closing the generator cancels it.
        beat: seconds between heartbeats.
    """

    def __init__(self, channel: AsyncChannel, transport: asyncio.WriteTransport, run: RunRequest, beat: float) -> None:
        self._channel = channel
        self._transport = transport
        self._run = run
        self._silence = Silence(beat)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._news: list[News] = []
        self._is_over = False

    async def serve(self) -> None:
        """Obey until the ingress goes, or is cut off; nothing of it is left afterwards."""
        watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            while True:
                orders = decode_orders(await self._channel.receive())
                self._silence.broken()
                for order in orders:
                    self._obey(order)
                if not orders:
                    self._channel.send(encode_news([]))
        except TargetLostError as error:
            logger.info("an ingress has gone: %s", error)
        except msgspec.DecodeError as error:
            logger.warning("an ingress was cut off: it sent what is no order (%s)", error)
        finally:
            watching.cancel()
            self.close()
            await asyncio.gather(watching, *self._running.values(), return_exceptions=True)

    def close(self) -> None:
        """Cut the connection and cancel its requests."""
        self._is_over = True
        self._news.clear()
        self._channel.close()
        for task in self._running.values():
            task.cancel()

    def _obey(self, order: Order) -> None:
        if isinstance(order, Submit):
            if order.number in self._running:
                raise msgspec.ValidationError(f"request {order.number} was submitted twice")
            task = asyncio.get_running_loop().create_task(self._stream(order.number, order.request))
            self._running[order.number] = task
            task.add_done_callback(lambda _: self._running.pop(order.number, None))
        elif order.number in self._running:  # else it has just ended
            self._running[order.number].cancel()

    async def _stream(self, number: int, request: SubmitRequest) -> None:
        try:
            async with aclosing(self._run(request)) as events:
                async for event in events:
                    self._tell(News(number, event))
        except SpectraError as error:
            self._tell(News(number, None, Failure.of(error)))
        except Exception:
            logger.exception("a request failed")
            self._tell(News(number, None, Failure.of(StepFailedError("the router failed on this request"))))

    def _tell(self, news: News) -> None:
        """Keep it for the frame that leaves once all requests of this turn of the event loop have had their word."""
        if self._is_over:
            return
        if not self._news:
            asyncio.get_running_loop().call_soon(self._flush)
        self._news.append(news)

    def _flush(self) -> None:
        if self._is_over or not self._news:
            return
        self._channel.send(encode_news(self._news))
        self._news.clear()
        unread = self._transport.get_write_buffer_size()
        if unread > MAX_UNREAD:
            logger.warning("an ingress was cut off: it has left %d bytes unread", unread)
            self.close()

    async def _watch(self) -> None:
        while await self._silence.beat():
            pass
        logger.warning("an ingress was cut off: it is silent")
        self.close()
