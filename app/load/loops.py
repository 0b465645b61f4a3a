"""When the next request is sent: closed loops, open loops, and the arrivals of an open loop."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

from app.load.settings import POISSON

Ask = Callable[[int, float], Coroutine[Any, Any, None]]  # index of a request, and its intended time in seconds


class MonotonicClock:
    """The monotonic clock, in seconds."""

    def now(self) -> float:
        """The present moment."""
        return time.monotonic()

    async def sleep_until(self, moment: float) -> None:
        """Return at ``moment``, or at once if it has passed."""
        if (left := moment - self.now()) > 0:
            await asyncio.sleep(left)


async def closed_loop(
    ask: Ask, concurrency: int, requests: int | None, duration: float | None, clock: MonotonicClock | None = None
) -> None:
    """Run ``concurrency`` clients; each sends its next request when its last one is done.

    Args:
        ask: sends one request and returns when it is done; must not raise.
        requests: to send in all; None: no limit.
        duration: seconds in which requests begin; None: no limit.
    """
    clock = clock or MonotonicClock()
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


async def open_loop(ask: Ask, offsets: Iterable[float], clock: MonotonicClock | None = None) -> None:
    """Send requests at given moments, however many are unanswered; returns when all are done.

    Args:
        ask: sends one request; latency counts from the moment that it is given.
        offsets: arrivals, in seconds from now, ascending.
    """
    clock = clock or MonotonicClock()
    began = clock.now()
    async with asyncio.TaskGroup() as group:
        for index, offset in enumerate(offsets):
            await clock.sleep_until(began + offset)
            group.create_task(ask(index, began + offset))


def arrivals(
    rate: float, kind: str, seed: int, requests: int | None = None, duration: float | None = None
) -> Iterator[float]:
    """When the requests of an open loop arrive: ascending seconds from its start.

    Args:
        rate: requests per second.
        kind: ``POISSON``: exponential gaps, independent of each other; ``FIXED``: equal gaps.
        requests: upper limit of arrivals; None: no limit.
        duration: end of the arrivals; None: no limit.
    """
    times = _poisson(rate, seed) if kind == POISSON else (i / rate for i in itertools.count())
    if duration is not None:
        times = itertools.takewhile(lambda at: at < duration, times)
    return itertools.islice(times, requests)


def _poisson(rate: float, seed: int) -> Iterator[float]:
    noise, now = random.Random(seed), 0.0
    while True:
        now += noise.expovariate(rate)
        yield now
