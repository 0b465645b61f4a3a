"""Sequences move when their lane stays without a pipeline, and when another lane has just got one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from deployments.router.failover import Rebalancer
from engine.scheduling.sequence import SequenceState
from tests.deployments.router.router_fakes import FakeLane, FakeSequence


class Lanes:
    """Lanes, their rebalancer, and the moves it has reported."""

    def __init__(self, *lanes: Any) -> None:
        self.moves: list[tuple[int, FakeLane]] = []
        self.n_counted = 0
        sessions, metrics = SimpleNamespace(move=self._move), SimpleNamespace(moved=SimpleNamespace(inc=self._count))
        self.rebalancer: Any = Rebalancer(list(lanes), sessions, metrics, failover=0.0)  # type: ignore[arg-type]

    def _move(self, sequence: FakeSequence, lane: FakeLane) -> None:
        self.moves.append((sequence.seq, lane))

    def _count(self) -> None:
        self.n_counted += 1

    async def failover(self) -> None:
        """Wait until the timers of all lanes that are down have run."""
        await asyncio.sleep(0.01)


def lane(*seqs: int, is_up: bool = True) -> FakeLane:
    return FakeLane(sequences=[FakeSequence(seq) for seq in seqs], is_up=is_up)


def seqs(lane: FakeLane) -> list[int]:
    return [one.seq for one in lane.sequences]


async def test_sequences_of_a_lane_that_stays_down_go_to_the_least_loaded_lanes() -> None:
    down, busy, idle = lane(1, 2, 3, is_up=False), lane(4, 5), lane()
    lanes = Lanes(down, busy, idle)
    lanes.rebalancer.schedule_failover(down)
    assert len(down.sequences) == 3
    await lanes.failover()
    assert (seqs(down), seqs(idle), seqs(busy)) == ([], [1, 2], [4, 5, 3])
    assert idle.losses[0] == "losses of 1"
    assert lanes.moves == [(1, idle), (2, idle), (3, busy)]
    assert lanes.n_counted == 3
    assert idle.n_dispatched == busy.n_dispatched == 1


async def test_sequences_stay_in_a_lane_that_is_back_in_time_or_alone_or_once_the_rebalancer_is_closed() -> None:
    back, alone, closed, down = lane(1), lane(1, is_up=False), lane(1, is_up=False), lane(1, 2, is_up=False)
    other = lane(is_up=False)
    all_lanes = [Lanes(back, lane(2)), Lanes(alone), Lanes(closed, lane()), Lanes(down, other)]
    for lanes in all_lanes:
        lanes.rebalancer.start()
    all_lanes[0].rebalancer.fill(back)
    all_lanes[2].rebalancer.close()
    await all_lanes[0].failover()
    assert [lanes.n_counted for lanes in all_lanes] == [0, 0, 0, 0]
    other.is_up = True
    all_lanes[3].rebalancer.fill(other)  # the first of several that were down takes all
    assert seqs(other) == [1, 2]


async def test_a_lane_that_comes_up_takes_the_last_of_a_busy_queue_until_both_have_the_same_work() -> None:
    busy, idle = lane(1, 2, 3, 4), lane()
    Lanes(busy, idle).rebalancer.fill(idle)
    assert (seqs(busy), seqs(idle)) == ([1, 2], [4, 3])
    assert idle.n_dispatched == 1


async def test_running_sequences_and_suspected_poison_requests_do_not_move_to_a_new_lane() -> None:
    busy, idle = lane(1, 3, 2), lane()
    running, suspect, _ = busy.sequences
    running.state, busy.suspected = SequenceState.READY, [suspect]
    Lanes(busy, idle).rebalancer.fill(idle)
    assert seqs(idle) == [2]
