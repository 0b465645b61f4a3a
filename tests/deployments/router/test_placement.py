"""A new request goes to the lane with the least work, or to the one that has computed the beginning of its prompt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deployments.options import RouterOptions
from deployments.router import placement
from deployments.router.placement import Placement
from tests.deployments.router.router_fakes import FakeLane, FakeSequence

LONG = list(range(300))


def lane(load: float = 0.0, is_up: bool = True) -> FakeLane:
    return FakeLane(sequences=[FakeSequence(0, work=load)], is_up=is_up)


class Chooser:
    """Placement by prefix in two lanes, of which the second has more work."""

    def __init__(self) -> None:
        self.lanes: list[Any] = [lane(0), lane(1)]
        self._placement = Placement(self.lanes, RouterOptions(affinity="prefix", affinity_slack=100))

    def choose(self, prompt: list[int], work: float | None = None, scope: str = "") -> int:
        """The number of the lane, with this much work in the first one."""
        if work is not None:
            self.lanes[0].sequences[0].work = work
        request: Any = SimpleNamespace(prompt=prompt, scope=scope)
        return self.lanes.index(self._placement.choose(request))


@pytest.mark.parametrize("is_up", [True, False])
def test_the_least_loaded_lane_takes_a_request_and_one_that_is_down_only_if_all_are(is_up: bool) -> None:
    lanes: Any = [lane(5, is_up), lane(3, is_up), *([lane(0, is_up=False)] if is_up else [])]
    request: Any = SimpleNamespace(prompt=LONG, scope="")
    assert Placement(lanes, RouterOptions()).choose(request) is lanes[1]


def test_a_known_prefix_of_the_same_scope_wins_against_a_smaller_load_within_the_slack() -> None:
    chooser = Chooser()
    assert chooser.choose(LONG) == 0
    assert chooser.choose(LONG[:20] + [9] * 50, work=101.0) == 0  # 16 tokens alike
    assert chooser.choose(LONG, work=102.0) == 1
    for prompt, scope in ((LONG, "tenant"), (LONG[:15], ""), ([9, *LONG], "")):
        chooser = Chooser()
        assert chooser.choose(LONG) == 0
        assert chooser.choose(prompt, work=2.0, scope=scope) == 1


def test_the_longest_known_prefix_decides_and_moves_away_from_a_lane_that_is_down() -> None:
    chooser = Chooser()
    assert chooser.choose(LONG[:16] + [7] * 60) == 0
    assert chooser.choose(LONG, work=500.0) == 1
    assert chooser.choose(LONG[:64], work=0.0) == 1
    chooser = Chooser()
    assert chooser.choose(LONG) == 0
    for chooser.lanes[0].is_up in (False, True):
        assert chooser.choose(LONG) == 1


def test_the_prefixes_used_least_recently_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "MAX_PREFIXES", 2)
    chooser = Chooser()
    for start in (0, 100, 200):
        chooser.choose(LONG[start : start + 20])
    assert chooser.choose(LONG[200:220], work=2.0) == 0
    assert chooser.choose(LONG[0:20]) == 1
