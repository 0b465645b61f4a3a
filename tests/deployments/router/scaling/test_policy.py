"""How many pipelines are wanted: bounds, delays and hysteresis hold for any load, and a simulated one is followed."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.options import ScalingOptions
from deployments.router.scaling.policy import FULL, Demand, ScalingPolicy

OPTIONS = ScalingOptions(least=1, most=4, up_delay=10.0, down_delay=60.0)
DEMANDS = st.builds(Demand, st.floats(0, 12), st.floats(0, 40), st.integers(0, 4))


def run(policy: ScalingPolicy, demand: Demand, seconds: int, begin: int = 0) -> list[int]:
    """What is wanted in each of the seconds."""
    return [policy.decide(demand, float(now)) for now in range(begin, begin + seconds)]


@given(st.lists(DEMANDS, max_size=200), st.integers(0, 9))
def test_what_is_wanted_stays_within_bounds_and_changes_no_faster_than_the_delays(
    demands: list[Demand], wanted: int
) -> None:
    policy = ScalingPolicy(OPTIONS, wanted)
    last = policy.wanted
    assert last == max(1, min(4, wanted))
    begin, history = 0.0, [(0.0, last)]
    for now, demand in enumerate(demands):
        new = policy.decide(demand, float(now))
        assert 1 <= new <= 4
        if new != last:
            changed = history[-1][0]
            assert now - changed >= (OPTIONS.up_delay if new > last else OPTIONS.down_delay) or changed == begin
            history.append((float(now), new))
            last = new


@given(st.lists(st.tuples(st.floats(0, 12), st.integers(0, 4)), min_size=61, max_size=120))
def test_fewer_are_wanted_only_if_what_ran_all_the_time_fits_with_room_to_spare(
    seen: list[tuple[float, int]],
) -> None:
    policy = ScalingPolicy(OPTIONS, 4)
    for now, (pipelines, up) in enumerate(seen):
        before = policy.wanted
        if policy.decide(Demand(pipelines, 0.0, up), float(now)) < before:
            window = [one for one, _ in seen[max(0, now - 60) : now + 1]]
            assert max(window) <= FULL * policy.wanted + 1e-9
            assert len(window) == 61


def test_more_are_wanted_once_requests_lack_room_for_the_delay_and_as_many_as_they_needed_all_the_time() -> None:
    policy = ScalingPolicy(OPTIONS)
    assert run(policy, Demand(3.2), 8) == [1] * 8
    assert run(policy, Demand(2.1), 3, 8) == [1, 1, 3]


def test_a_moment_with_room_begins_the_delay_anew() -> None:
    policy = ScalingPolicy(OPTIONS)
    run(policy, Demand(2.5), 9)
    assert run(policy, Demand(1.0), 1, 9) == [1]
    assert run(policy, Demand(2.5), 11, 10) == [1] * 10 + [3]


def test_pipelines_that_are_pending_are_not_asked_for_twice() -> None:
    policy = ScalingPolicy(OPTIONS)
    assert run(policy, Demand(2.5, waited=5.0, up=1), 11)[-1] == 3
    assert run(policy, Demand(2.5, waited=100.0, up=1), 100, 11) == [3] * 100
    assert run(policy, Demand(3.5, waited=100.0, up=1), 11, 111) == [3] * 10 + [4]


def test_one_more_is_wanted_when_requests_wait_though_the_demand_is_reckoned_to_fit() -> None:
    policy = ScalingPolicy(OPTIONS)
    assert run(policy, Demand(0.9, waited=9.9, up=1), 30) == [1] * 30
    assert run(policy, Demand(0.9, waited=10.0, up=1), 1, 30) == [2]
    assert run(policy, Demand(1.1, waited=20.0, up=1), 30, 31) == [2] * 30  # it is pending
    assert run(policy, Demand(1.1, waited=20.0, up=2), 11, 61) == [2] * 10 + [3]


def test_hysteresis_a_demand_between_both_limits_changes_nothing() -> None:
    for wanted in (2, 3, 4):
        policy = ScalingPolicy(OPTIONS, wanted)
        between = (FULL * (wanted - 1) + wanted) / 2
        assert run(policy, Demand(between, up=wanted), 1000) == [wanted] * 1000


def test_without_any_request_only_the_least_stay_after_the_delay() -> None:
    policy = ScalingPolicy(OPTIONS, 4)
    assert run(policy, Demand(0.0, up=4), 61) == [4] * 60 + [1]


def test_other_bounds_hold_at_once() -> None:
    policy = ScalingPolicy(OPTIONS, 2)
    policy.bound(3, 4)
    assert policy.wanted == 3
    policy.bound(1, 1)
    assert policy.wanted == 1
    assert run(policy, Demand(9.0, 50.0, 1), 30) == [1] * 30


class Site:
    """Pipelines of eight slots that take a minute to come, and requests of a random length, in steps of a second."""

    SLOTS, COMES_S = 8, 60

    def __init__(self, rate: Callable[[int], float], seed: int) -> None:
        self._rate, self._chance = rate, random.Random(seed)
        self.policy = ScalingPolicy(OPTIONS)
        self._up_at: list[int] = [0]  # when each pipeline is there
        self._running: list[float] = []  # ends
        self._queue: deque[int] = deque()  # arrivals
        self.wanted: list[int] = []
        self.waits: list[tuple[int, int]] = []  # arrival, seconds until the start

    def run(self, seconds: int) -> None:
        for now in range(seconds):
            while self._running and self._running[0] <= now:
                heapq.heappop(self._running)
            self._queue.extend([now] * self._arrivals(now))
            n_up = sum(at <= now for at in self._up_at)
            while self._queue and len(self._running) < n_up * self.SLOTS:
                arrived = self._queue.popleft()
                self.waits.append((arrived, now - arrived))
                heapq.heappush(self._running, now + self._chance.expovariate(1 / 20))
            waited = now - self._queue[0] if self._queue else 0
            demand = Demand((len(self._running) + len(self._queue)) / self.SLOTS, waited, n_up)
            wanted = self.policy.decide(demand, float(now))
            self._up_at = sorted(self._up_at)[:wanted] + [now + self.COMES_S] * (wanted - len(self._up_at))
            self.wanted.append(wanted)

    def _arrivals(self, now: int) -> int:
        """A Poisson number of requests."""
        n, left = 0, self._chance.expovariate(1.0)
        while left < self._rate(now):
            n, left = n + 1, left + self._chance.expovariate(1.0)
        return n


@pytest.mark.parametrize("seed", range(5))
def test_a_simulated_day_is_followed_without_flapping(seed: int) -> None:
    day = 7200

    def rate(now: int) -> float:  # requests a second: 0.1 to 1.1, for 0.25 to 2.75 pipelines
        return 0.6 - 0.5 * math.cos(2 * math.pi * now / day)

    site = Site(rate, seed)
    site.run(day)
    assert max(site.wanted) >= 3
    assert site.wanted[-1] <= 2
    changes = sum(a != b for a, b in zip(site.wanted, site.wanted[1:], strict=False))
    assert changes <= 14
    late = sum(wait > 30 for _, wait in site.waits)
    assert late <= 0.1 * len(site.waits)
    assert sum(site.wanted) < 0.8 * 4 * day


def test_a_burst_shorter_than_the_delay_adds_no_pipeline() -> None:
    site = Site(lambda now: 4.0 if 100 <= now < 103 else 0.05, seed=1)
    site.run(400)
    assert max(site.wanted) <= 2
