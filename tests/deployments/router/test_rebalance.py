"""Sequences move when their lane stays without a pipeline, and when another lane has just got one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from deployments.router.rebalance import Rebalancer
from engine.scheduling.sequence import State
from tests.support.router_fakes import FakeLane, FakeSequence

FAILOVER = 0.02  # seconds


class Lanes:
    """Lanes, their rebalancer and what it was told to count."""

    def __init__(self, *lanes: FakeLane) -> None:
        self.lane_of: dict[int, FakeLane] = {}  # of sequences that moved
        self.n_moved = 0
        sessions, metrics = SimpleNamespace(move=self._move), SimpleNamespace(count_moved=self._count)
        self.rebalancer = Rebalancer(list(lanes), sessions, metrics, FAILOVER)  # type: ignore[arg-type]

    def _move(self, sequence: FakeSequence, lane: FakeLane) -> None:
        self.lane_of[sequence.seq] = lane

    def _count(self) -> None:
        self.n_moved += 1


def sequences(*seqs: int, **fields: Any) -> list[FakeSequence]:
    return [FakeSequence(seq, **fields) for seq in seqs]


async def test_a_lane_that_stays_down_loses_its_sequences_to_the_least_loaded_lanes() -> None:
    down, busy, idle = FakeLane("down", sequences(1, 2, 3)), FakeLane(sequences=sequences(4, 5)), FakeLane()
    them = Lanes(down, busy, idle)
    down.is_up = False
    them.rebalancer.went_down(down)  # type: ignore[arg-type]
    assert len(down.sequences) == 3
    await asyncio.sleep(3 * FAILOVER)
    assert [one.seq for one in idle.sequences] == [1, 2]
    assert [one.seq for one in busy.sequences] == [4, 5, 3]
    assert idle.poison_requests.adopted[0][1] == "losses of 1"
    assert them.lane_of == {1: idle, 2: idle, 3: busy}
    assert them.n_moved == 3
    assert idle.n_dispatched == busy.n_dispatched == 1


async def test_a_lane_that_is_back_in_time_keeps_its_sequences() -> None:
    lane, other = FakeLane(sequences=sequences(1)), FakeLane(sequences=sequences(2))
    them = Lanes(lane, other)
    lane.is_up = False
    them.rebalancer.went_down(lane)  # type: ignore[arg-type]
    lane.is_up = True
    them.rebalancer.came_up(lane)  # type: ignore[arg-type]
    await asyncio.sleep(3 * FAILOVER)
    assert them.n_moved == 0


async def test_without_another_lane_that_is_up_sequences_wait_for_the_first_one() -> None:
    down, other = FakeLane(sequences=sequences(1, 2), is_up=False), FakeLane(is_up=False)
    them = Lanes(down, other)
    them.rebalancer.start()
    await asyncio.sleep(3 * FAILOVER)
    assert them.n_moved == 0
    other.is_up = True
    them.rebalancer.came_up(other)  # type: ignore[arg-type]
    assert [one.seq for one in other.sequences] == [1, 2]


async def test_a_lane_that_comes_up_takes_half_of_the_work_of_a_busy_one_and_the_last_of_its_queue() -> None:
    busy, idle = FakeLane(sequences=sequences(1, 2, 3, 4)), FakeLane()
    them = Lanes(busy, idle)
    them.rebalancer.came_up(idle)  # type: ignore[arg-type]
    assert [one.seq for one in busy.sequences] == [1, 2]
    assert [one.seq for one in idle.sequences] == [4, 3]
    assert idle.n_dispatched == 1


async def test_running_sequences_and_suspected_poison_requests_stay() -> None:
    running, suspect, waiting = [*sequences(1, state=State.READY), *sequences(3, 2)]
    busy, idle = FakeLane(sequences=[running, suspect, waiting]), FakeLane()
    busy.poison_requests.suspected.append(suspect)
    Lanes(busy, idle).rebalancer.came_up(idle)  # type: ignore[arg-type]
    assert idle.sequences == [waiting]


async def test_one_lane_alone_moves_nothing_and_a_closed_rebalancer_neither() -> None:
    alone = Lanes(FakeLane(sequences=sequences(1), is_up=False))
    alone.rebalancer.start()
    down, up = FakeLane(sequences=sequences(1), is_up=False), FakeLane()
    them = Lanes(down, up)
    them.rebalancer.start()
    them.rebalancer.close()
    await asyncio.sleep(3 * FAILOVER)
    assert (alone.n_moved, them.n_moved) == (0, 0)
