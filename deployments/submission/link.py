"""The ingress's end of one connection to a router: a mailbox for every request that runs there."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from deployments.submission.messages import Failure, SubmitRequest
from deployments.submission.protocol import (
    BEAT_S,
    SUBMIT,
    Attachment,
    Cancel,
    Order,
    Silence,
    Submit,
    decode_news,
    encode_orders,
)
from deployments.transport.channel import AsyncChannel
from engine.errors import TargetLostError
from engine.events import StepEvent

logger = logging.getLogger(__name__)


class Mailbox:
    """What a router says about one request; must be closed."""

    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self._number = number
        self._items: asyncio.Queue[StepEvent | Failure | None] = asyncio.Queue()

    def put(self, item: StepEvent | Failure | None) -> None:
        """By the link."""
        self._items.put_nowait(item)

    async def get(self) -> StepEvent | Failure | None:
        """The next event, the error that ends the request, or None when the router is lost."""
        return await self._items.get()

    def close(self) -> None:
        """Nobody reads it any more: what still runs is cancelled."""
        self._link.forget(self._number)


class Link:
    """One connection, as long as it holds.

    Args:
        channel: authenticated.
        beat: seconds between heartbeats.
    """

    def __init__(self, channel: AsyncChannel, beat: float = BEAT_S) -> None:
        self._channel = channel
        self._silence = Silence(beat)
        self._mailboxes: dict[int, Mailbox] = {}
        self._orders: list[Order] = []
        self._next = 0
        self.is_open = True
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._beat())]

    @classmethod
    async def connect(cls, attachment: Attachment, beat: float = BEAT_S) -> Link:
        """Connect to a router; raises TargetLostError when it does not answer."""
        return cls(await AsyncChannel.connect(attachment.address, attachment.secret, SUBMIT), beat)

    def open(self, request: SubmitRequest) -> Mailbox:
        """Start a request."""
        mailbox = Mailbox(self, self._next)
        self._next += 1
        if self.is_open:
            self._mailboxes[self._next - 1] = mailbox
            self._order(Submit(self._next - 1, request))
        else:
            mailbox.put(None)
        return mailbox

    def forget(self, number: int) -> None:
        """A mailbox was closed."""
        if self._mailboxes.pop(number, None) is not None:
            self._order(Cancel(number))

    def close(self) -> None:
        """Drop the connection; mailboxes learn that the router is lost."""
        if not self.is_open:
            return
        self.is_open = False
        self._channel.close()
        for task in self._tasks:
            task.cancel()
        mailboxes, self._mailboxes = self._mailboxes, {}
        for mailbox in mailboxes.values():
            mailbox.put(None)

    def _order(self, order: Order) -> None:
        """Orders of one turn of the event loop share a frame."""
        if not self._orders:
            asyncio.get_running_loop().call_soon(self._flush)
        self._orders.append(order)

    def _flush(self) -> None:
        self._channel.send(encode_orders(self._orders))
        self._orders.clear()

    async def _read(self) -> None:
        try:
            while True:
                for news in decode_news(await self._channel.receive()):
                    self._deliver(news.number, news.event or news.failure)
                self._silence.broken()
        except (TargetLostError, msgspec.DecodeError) as error:
            logger.warning("the router is lost: %s", error)
        finally:
            self.close()

    def _deliver(self, number: int, item: StepEvent | Failure | None) -> None:
        is_last = not isinstance(item, StepEvent) or item.finish_reason is not None
        mailbox = self._mailboxes.pop(number, None) if is_last else self._mailboxes.get(number)
        if mailbox is not None:  # else it was closed a moment ago
            mailbox.put(item)

    async def _beat(self) -> None:
        while await self._silence.beat():
            self._channel.send(encode_orders([]))
        logger.warning("the router is lost: it is silent")
        self.close()
