"""Closed and open loops: when the next request is sent; not what it asks, nor what came of it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator

Ask = Callable[[int, float], Awaitable[None]]  # index of a request, and when it was meant to be sent


class Clock:
    """Monotonic seconds, and waiting for a moment of them."""

    def now(self) -> float:
        """Seconds."""
        return time.monotonic()

    async def sleep_until(self, moment: float) -> None:
        """Returns at ``moment``, or at once if it has passed."""
        if (left := moment - self.now()) > 0:
            await asyncio.sleep(left)


async def closed_loop(
    ask: Ask, concurrency: int, requests: int | None, duration: float | None, clock: Clock | None = None
) -> None:
    """So many clients; each sends its next request when its last one is done.

    Args:
        ask: sends one request and returns when it is done; must not raise.
        concurrency: number of clients.
        requests: to send in all; None: no limit.
        duration: seconds after which none is begun any more; None: no limit.
        clock: for tests.
    """
    clock = clock or Clock()
    end = None if duration is None else clock.now() + duration
    indices: Iterator[int] = itertools.count() if requests is None else iter(range(requests))

    async def client() -> None:
        while end is None or clock.now() < end:
            index = next(indices, None)
            if index is None:
                return
            await ask(index, clock.now())

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(client())


async def open_loop(ask: Ask, offsets: Iterable[float], clock: Clock | None = None) -> None:
    """Requests arrive when they arrive, however many are unanswered; returns when all are done.

    Args:
        ask: sends one request; is told the moment it should have been sent at, which is what latency counts from.
        offsets: arrivals, in seconds from now, ascending.
        clock: for tests.
    """
    clock = clock or Clock()
    began = clock.now()
    async with asyncio.TaskGroup() as group:
        for index, offset in enumerate(offsets):
            await clock.sleep_until(began + offset)
            group.create_task(_as_coroutine(ask, index, began + offset))


async def _as_coroutine(ask: Ask, index: int, intended: float) -> None:
    await ask(index, intended)
