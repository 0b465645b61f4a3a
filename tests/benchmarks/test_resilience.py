"""What the resilience benchmarks make of what they saw; their servers are not started here."""

from __future__ import annotations

import pytest

from benchmarks.resilience.__main__ import parsed
from benchmarks.resilience.faults import faults
from benchmarks.resilience.observation import PARTS, Sample, part_of
from benchmarks.resilience.overload import row_of, wrong_with
from benchmarks.resilience.phases import Phase, longest_and_recovery, net_of, pause_figures, pauses
from benchmarks.resilience.soak import growth


def test_a_pause_that_spans_the_fault_counts_and_one_before_it_does_not() -> None:
    gaps = pauses([[0.0, 2.0, 2.1, 5.1], [2.4, 3.3, 3.4]])
    phase = Phase("kill router", 2.0, acted=2.2, ended=6.0)
    longest, recovered = longest_and_recovery(phase, gaps)
    assert longest == pytest.approx(3.0)
    assert recovered == pytest.approx(5.1 - 2.2)


def test_pauses_below_half_a_second_need_no_recovery() -> None:
    phase = Phase("kill stage 0", 0.0, acted=0.5, ended=2.0)
    assert longest_and_recovery(phase, pauses([[0.4, 0.8, 1.2]])) == (pytest.approx(0.4), 0.0)


def test_what_the_timer_was_late_is_taken_off_a_pause() -> None:
    gaps = pauses([[1.0, 1.5, 1.6]])
    net = net_of(gaps, [(1.2, 0.1), (1.4, 0.3), (3.0, 9.0)], period=0.01)
    assert [round(seconds, 3) for _, seconds in net] == [0.2, 0.1]
    figures = pause_figures(Phase("nothing", 1.0, acted=1.0, ended=2.0), gaps, net)
    assert (figures["pause_longest"], figures["pause_longest_net"], figures["longest_at_seconds"]) == (
        500.0,
        200.0,
        0.5,
    )


def test_every_fault_has_a_victim_that_is_known_by_its_title() -> None:
    every = faults(3)
    assert {fault.victim for fault in every} <= set(PARTS)
    assert len({fault.name for fault in every}) == len(every) == 10
    assert all(part_of(f"{title}.method") == part for part, title in PARTS.items())
    assert part_of("/site-packages/ray/core/src/ray/gcs/gcs_server --x") == "Ray's GCS"
    assert part_of("ray::IDLE") == "other"


def test_growth_is_the_slope_of_the_last_two_thirds() -> None:
    samples = [Sample(60.0 * n, {}, True, {"router": 500.0 if n < 3 else 100.0 + n}) for n in range(9)]
    assert growth(samples)["router"] == {"after_a_third": 103.0, "at_the_end": 108.0, "mib_per_hour": 60.0}


def test_overload_names_everything_that_must_not_be() -> None:
    found = {
        "ok": 5,
        "failed": 3,
        "errors": {"429": 2, "timeout": 1},
        "retry_after": {"p50": 1.0, "max": 2.0, "n": 1},
        "ttft": {"p50": 1.0, "p99": 7.0},
        "output_tokens_per_s": 10.0,
        "identity": {"differing": ["a question"]},
    }
    wrong = wrong_with(row_of(4.0, 12.0, found), longest_wait=6.0)
    assert [line.removeprefix("at 4.0 x capacity: ") for line in wrong] == [
        "1 requests failed: {'429': 2, 'timeout': 1}",
        "texts differ: ['a question']",
        "TTFT p99 is 7.0 s, more than 6.0",
        "1 refusals without Retry-After",
    ]
    calm = found | {"failed": 0, "errors": {}, "ttft": None, "retry_after": None, "identity": {"differing": []}}
    assert wrong_with(row_of(1.0, 3.0, calm), 6.0) == []
    assert wrong_with(row_of(4.0, 12.0, calm), 6.0) == ["at 4.0 x capacity: no request was refused"]


def test_factors_are_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert parsed(["overload", "--factors", "1,2.5"]).factors == [1.0, 2.5]
    with pytest.raises(SystemExit):
        parsed(["overload", "--factors", "1,x"])
    assert "--factors: invalid numbers value: '1,x'" in capsys.readouterr().err
