"""The desired number of pipelines: bounds, delays and hysteresis hold for any load."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.options import ScalingOptions
from deployments.router.scaling.policy import FULL, Demand, ScalingPolicy, bounds_of
from engine.errors import ConfigError

OPTIONS = ScalingOptions(least=1, most=4, up_delay=10.0, down_delay=60.0)
DEMANDS = st.builds(Demand, st.floats(0, 12), st.floats(0, 40), st.integers(0, 4))


def run(policy: ScalingPolicy, demand: Demand, seconds: int, begin: int = 0) -> list[int]:
    """The desired number in each of the seconds."""
    return [policy.decide(demand, float(now)) for now in range(begin, begin + seconds)]


@given(st.lists(DEMANDS, max_size=200), st.integers(0, 9))
def test_the_desired_number_stays_within_bounds_and_changes_no_faster_than_the_delays(
    demands: list[Demand], desired: int
) -> None:
    policy = ScalingPolicy(OPTIONS, desired)
    last = policy.desired
    assert last == max(1, min(4, desired))
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
def test_pipelines_are_removed_only_if_the_load_always_fitted_with_room_to_spare(
    seen: list[tuple[float, int]],
) -> None:
    policy = ScalingPolicy(OPTIONS, 4)
    for now, (pipelines, up) in enumerate(seen):
        before = policy.desired
        if policy.decide(Demand(pipelines, 0.0, up), float(now)) < before:
            window = [one for one, _ in seen[max(0, now - 60) : now + 1]]
            assert max(window) <= FULL * policy.desired + 1e-9
            assert len(window) == 61


def test_pipelines_are_added_once_requests_have_lacked_room_for_the_delay_without_a_break() -> None:
    policy = ScalingPolicy(OPTIONS)
    assert run(policy, Demand(3.2), 8) == [1] * 8
    assert run(policy, Demand(2.1), 3, 8) == [1, 1, 3]  # as many as they needed all the time
    policy = ScalingPolicy(OPTIONS)
    run(policy, Demand(2.5), 9)
    assert run(policy, Demand(1.0), 1, 9) == [1]
    assert run(policy, Demand(2.5), 11, 10) == [1] * 10 + [3]


def test_pipelines_that_are_pending_are_not_asked_for_twice() -> None:
    policy = ScalingPolicy(OPTIONS)
    assert run(policy, Demand(2.5, waited=5.0, up=1), 11)[-1] == 3
    assert run(policy, Demand(2.5, waited=100.0, up=1), 100, 11) == [3] * 100
    assert run(policy, Demand(3.5, waited=100.0, up=1), 11, 111) == [3] * 10 + [4]


def test_one_pipeline_is_added_when_requests_wait_although_the_demand_should_fit() -> None:
    policy = ScalingPolicy(OPTIONS)
    assert run(policy, Demand(0.9, waited=9.9, up=1), 30) == [1] * 30
    assert run(policy, Demand(0.9, waited=10.0, up=1), 1, 30) == [2]
    assert run(policy, Demand(1.1, waited=20.0, up=1), 30, 31) == [2] * 30  # it is pending
    assert run(policy, Demand(1.1, waited=20.0, up=2), 11, 61) == [2] * 10 + [3]


def test_without_any_request_only_the_least_stay_after_the_delay() -> None:
    policy = ScalingPolicy(OPTIONS, 4)
    assert run(policy, Demand(0.0, up=4), 61) == [4] * 60 + [1]


def test_other_bounds_hold_at_once() -> None:
    policy = ScalingPolicy(OPTIONS, 2)
    for bounds, desired in (((3, 4), 3), ((1, 1), 1)):
        policy.set_bounds(*bounds)
        assert policy.desired == desired
    assert run(policy, Demand(9.0, 50.0, 1), 30) == [1] * 30


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (2, 5)),
        ({"min_replicas": 3}, (3, 5)),
        ({"max_replicas": 2}, (2, 2)),
        ({"replicas": 3}, "replicas is unknown; it has min_replicas and max_replicas"),
        ({"max_replicas": 6}, "max_replicas is 6; it must be an integer from 2 to 5"),
        ({"min_replicas": 1}, "min_replicas is 1; it must be an integer from 2 to 5"),
        ({"min_replicas": "3"}, "min_replicas is '3'; it must be an integer"),
        ({"min_replicas": True}, "min_replicas is True; it must be an integer"),
        ({"min_replicas": 4, "max_replicas": 3}, "min_replicas is 4; it must be at most"),
    ],
)
def test_bounds_given_to_a_running_router_lie_within_those_it_was_started_with(
    given: dict[str, Any], expected: tuple[int, int] | str
) -> None:
    started = ScalingOptions(least=2, most=5)
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=re.escape(f"Router.user_config.{expected}")):
            bounds_of(given, started)
    else:
        assert bounds_of(given, started) == expected
