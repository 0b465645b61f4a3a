"""A newcomer goes to the lane with the least work, or to the one that has read the beginning of its prompt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deployments.options import RouterOptions
from deployments.router import placement
from deployments.router.placement import Placement
from tests.support.router_fakes import FakeLane, FakeSequence


def lane(load: float = 0.0, is_up: bool = True) -> FakeLane:
    return FakeLane(sequences=[FakeSequence(0, work=load)], is_up=is_up)


def request(prompt: list[int], scope: str = "") -> Any:
    return SimpleNamespace(prompt=prompt, scope=scope)


def by_prefix(*lanes: FakeLane, slack: int = 100) -> Any:
    return Placement(list(lanes), RouterOptions(affinity="prefix", affinity_slack=slack))  # type: ignore[arg-type]


LONG = list(range(300))


def test_the_least_loaded_lane_that_is_up_takes_a_newcomer() -> None:
    lanes: Any = [lane(5), lane(3), lane(0, is_up=False)]
    assert Placement(lanes, RouterOptions()).choose(request(LONG)) is lanes[1]


def test_without_any_lane_that_is_up_the_least_loaded_one_does() -> None:
    lanes: Any = [lane(5, is_up=False), lane(3, is_up=False)]
    assert Placement(lanes, RouterOptions()).choose(request(LONG)) is lanes[1]


def test_a_known_prefix_wins_against_a_smaller_load_within_the_slack() -> None:
    first, second = lane(0), lane(1)
    chooser = by_prefix(first, second)
    assert chooser.choose(request(LONG)) is first
    first.sequences[0].work = 101.0
    assert chooser.choose(request(LONG[:20] + [9] * 50)) is first  # 16 tokens alike
    first.sequences[0].work = 102.0
    assert chooser.choose(request(LONG)) is second


@pytest.mark.parametrize(
    "other", [request(LONG, "tenant"), request(LONG[:15]), request([9, *LONG])], ids=["scope", "short", "other"]
)
def test_other_prefixes_and_other_scopes_do_not_count(other: Any) -> None:
    first, second = lane(0), lane(1)
    chooser = by_prefix(first, second)
    chooser.choose(request(LONG))
    first.sequences[0].work = 2.0
    assert chooser.choose(other) is second


def test_the_longest_known_prefix_decides() -> None:
    first, second = lane(0), lane(1)
    chooser = by_prefix(first, second)
    chooser.choose(request(LONG[:16] + [7] * 60))  # first
    first.sequences[0].work = 500.0
    chooser.choose(request(LONG))  # second: too much work in the first
    first.sequences[0].work = 0.0
    assert chooser.choose(request(LONG[:64])) is second


def test_the_prefix_of_a_lane_that_is_down_moves() -> None:
    first, second = lane(0), lane(1)
    chooser = by_prefix(first, second)
    chooser.choose(request(LONG))
    first.is_up = False
    assert chooser.choose(request(LONG)) is second
    first.is_up = True
    assert chooser.choose(request(LONG)) is second


def test_the_prefixes_used_least_recently_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "REMEMBERED", 2)
    first, second = lane(0), lane(1)
    chooser = by_prefix(first, second)
    for start in (0, 100, 200):
        chooser.choose(request(LONG[start : start + 20]))
    first.sequences[0].work = 2.0
    assert chooser.choose(request(LONG[200:220])) is first
    assert chooser.choose(request(LONG[0:20])) is second
