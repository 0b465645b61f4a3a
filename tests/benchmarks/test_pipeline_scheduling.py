"""What the scheduling benchmark makes of events, and what it calls ideal."""

from __future__ import annotations

import pytest

from benchmarks.pipeline_scheduling.__main__ import ideal, misses
from benchmarks.pipeline_scheduling.measurement import per_second
from engine.simulated.profile import PROFILES


def test_rates_count_whole_bursts_between_the_first_and_the_last() -> None:
    bursts = [(0.1 * step + 1e-4 * stream, stream, 3) for step in range(11) for stream in range(4)]
    steps, tokens = per_second(bursts)
    assert steps == pytest.approx(40.0, rel=1e-3)
    assert tokens == pytest.approx(120.0, rel=1e-3)
    uneven = [event for event in bursts if event[1] == 0 or round(event[0] * 10) % 2 == 0]
    assert per_second(uneven)[0] == pytest.approx(25.0, rel=1e-3)


def test_a_single_burst_is_no_rate() -> None:
    with pytest.raises(AssertionError, match="measure longer"):
        per_second([(1.0, 0, 1), (1.0005, 1, 1)])


@pytest.mark.parametrize(
    ("stages", "streams", "wanted"), [(4, 1, 25.0), (4, 3, 75.0), (4, 8, 200.0), (4, 64, 200.0), (1, 1, 100.0)]
)
def test_the_ideal_is_the_issues(stages: int, streams: int, wanted: float) -> None:
    assert ideal(PROFILES["flat10"], stages, streams) == pytest.approx(wanted)


def test_what_falls_short_of_the_goal_is_named() -> None:
    found = {
        "throughput": [
            {"stages": 4, "streams": 1, "efficiency": 0.5},  # of one stream the next line tells
            {"stages": 4, "streams": 2, "efficiency": 0.95},
            {"stages": 4, "streams": 5, "efficiency": 0.94},
        ],
        "one_stream_step_over_sum": {2: 1.05, 4: 1.06},
        "speculation": [{"method": "pld", "streams": 8, "share": 0.9}, {"method": "pld", "streams": 1, "share": 1.0}],
    }
    assert misses(found, 0.95) == [
        "P=4, 5 streams: 0.940 of the ideal",
        "P=4, one stream: a step takes 1.060 times its stages",
        "pld, 8 streams: 0.900 of its tokens per forward",
    ]
