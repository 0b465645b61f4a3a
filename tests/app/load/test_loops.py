"""When requests are sent, on a virtual clock."""

from __future__ import annotations

import asyncio
import heapq
import statistics
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest

from app.load import run as loops
from app.load.run import arrivals, closed_loop, open_loop


class VirtualClock:
    """Time of the loops, which jumps to the next sleeper once all tasks sleep."""

    TaskGroup = asyncio.TaskGroup

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 100.0
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        self._n = 0
        monkeypatch.setattr(loops, "time", self)
        monkeypatch.setattr(loops, "asyncio", self)

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self._n += 1
            woken = asyncio.Event()
            heapq.heappush(self._sleepers, (self.time + seconds, self._n, woken))
            await woken.wait()

    async def drive(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        while not task.done():
            for _ in range(50):  # until all tasks sleep
                await asyncio.sleep(0)
            if self._sleepers and not task.done():
                self.time, _, woken = heapq.heappop(self._sleepers)
                woken.set()
        await task


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    return VirtualClock(monkeypatch)


def run(
    clock: VirtualClock, loop: Callable[[Any], Coroutine[Any, Any, None]], seconds: Callable[[int], float]
) -> list[tuple[int, float, float]]:
    """Requests of given lengths; returns (index, intended, sent) of each."""
    sent = []

    async def ask(index: int, intended: float) -> None:
        sent.append((index, intended, clock.time))
        await clock.sleep(seconds(index))

    asyncio.run(clock.drive(loop(ask)))
    return sent


def test_a_closed_loop_sends_the_next_request_when_the_last_is_done(clock: VirtualClock) -> None:
    sent = run(clock, lambda ask: closed_loop(ask, 2, 5, None), lambda i: 3.0 if i == 0 else 1.0)
    assert sorted(i for i, _, _ in sent) == [0, 1, 2, 3, 4]
    assert [at for _, _, at in sent] == [100.0, 100.0, 101.0, 102.0, 103.0]
    assert all(intended == at for _, intended, at in sent)
    assert clock.time == 104.0
    sent = run(clock, lambda ask: closed_loop(ask, 1, None, 5.0), lambda i: 2.0)
    assert [at for _, _, at in sent] == [104.0, 106.0, 108.0]  # none after the duration
    assert clock.time == 110.0  # the last one is awaited


def test_an_open_loop_does_not_wait_for_answers(clock: VirtualClock) -> None:
    sent = run(clock, lambda ask: open_loop(ask, [0.0, 0.5, 2.0]), lambda i: 100.0)
    assert [(i, intended) for i, intended, _ in sent] == [(0, 100.0), (1, 100.5), (2, 102.0)]
    assert clock.time == 202.0


def test_a_late_client_counts_from_the_intended_arrival(clock: VirtualClock) -> None:
    seen: list[tuple[float, float]] = []

    async def ask(index: int, intended: float) -> None:
        clock.time += 10.0 if index == 0 else 0.0  # the whole client stands still
        seen.append((intended, clock.time))

    asyncio.run(clock.drive(open_loop(ask, [0.0, 1.0, 2.0, 30.0])))
    assert [intended for intended, _ in seen] == [100.0, 101.0, 102.0, 130.0]
    assert max(at - intended for intended, at in seen) == 10.0
    assert seen[-1] == (130.0, 130.0)


def test_fixed_arrivals_are_even_and_poisson_arrivals_seeded_and_exponential() -> None:
    assert list(arrivals(4.0, "fixed", 0, requests=5)) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert list(arrivals(2.0, "fixed", 0, duration=1.5)) == [0.0, 0.5, 1.0]
    one, same, other = (list(arrivals(5.0, "poisson", seed, requests=50)) for seed in (1, 1, 2))
    assert one == same != other
    gaps = [b - a for a, b in pairwise(arrivals(5.0, "poisson", 0, requests=20_000))]
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.03)
    assert statistics.median(gaps) == pytest.approx(0.2 * 0.6931, rel=0.03)
