"""Micro-batches keep every stage busy: the real scheduler on a pipeline with a virtual clock."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scheduling.micro_batches import MicroBatches
from engine.step_cost import StepCosts
from tests.support.virtual_pipeline import VirtualPipeline, flat_costs, n_trees, virtual_pipeline

STAGE = 0.010  # seconds for a micro-batch of up to two sequences
WARM, END = 1.2, 6.0  # seconds


def two_at_a_time(batch: int) -> float:
    return STAGE * max(1.0, batch / 2)


def flat(batch: int) -> float:
    return STAGE * max(1.0, batch / 32)


def ideal(n: int, n_stages: int, at_once: int = 2) -> float:
    """Sequence-steps per second: every sequence in flight all the time, or every stage busy all the time."""
    return min(n / (n_stages * STAGE), at_once / STAGE)


def rate(pipeline: VirtualPipeline, n: int, arrivals: float = 0.0) -> float:
    """Sequence-steps per second of ``n`` sequences that come ``arrivals`` seconds after each other."""
    for i in range(n):
        pipeline.run(until=i * arrivals)
        pipeline.submit()
    pipeline.run(until=END)
    return pipeline.steps_per_second(WARM, END)


# Below and above every number of stages, and at shares that do not come out even.
NUMBERS = (*range(1, 12), 13, 15, 16, 17, 21, 24, 27, 31, 32, 33, 40, 47, 55, 63, 64)


@pytest.mark.parametrize("trip", [0.0, 0.0005])
@pytest.mark.parametrize("n_stages", [1, 2, 4, 8])
def test_stages_are_busy_with_any_number_of_sequences(n_stages: int, trip: float) -> None:
    reached = {n: rate(virtual_pipeline(n_stages, two_at_a_time, trip=trip), n) / ideal(n, n_stages) for n in NUMBERS}
    assert {n: share for n, share in reached.items() if share < 0.95} == {}


@pytest.mark.parametrize("n_stages", [1, 2, 4, 8])
def test_where_sequences_cost_nothing_larger_micro_batches_win(n_stages: int) -> None:
    for n in (1, 2, 3, 5, 8, 9, 13, 17, 31, 40, 64):
        made = virtual_pipeline(n_stages, flat, trip=0.0005, batches=(1, 2, 4, 8, 16, 32))
        assert rate(made, n) >= 0.95 * ideal(n, n_stages, at_once=32), n


@given(
    n=st.integers(1, 64),
    n_stages=st.sampled_from([1, 2, 3, 4, 8]),
    gap=st.floats(0.0, 0.03),
    trip=st.floats(0.0, 0.0005),
)
def test_however_they_come_they_find_together(n: int, n_stages: int, gap: float, trip: float) -> None:
    made = virtual_pipeline(n_stages, two_at_a_time, trip=trip)
    assert rate(made, n, arrivals=gap) >= 0.95 * ideal(n, n_stages)


@given(n=st.integers(1, 64), n_stages=st.sampled_from([1, 2, 4, 8]))
def test_unmeasured_stages_lose_no_more_than_a_split_into_even_shares_does(n: int, n_stages: int) -> None:
    """The largest share decides how fast all go round: that is all one can promise without having measured."""
    share = -(-n // n_stages)
    promised = n / (n_stages * two_at_a_time(share))
    made = virtual_pipeline(n_stages, two_at_a_time, is_measured=False)
    assert rate(made, n) >= 0.95 * promised


@pytest.mark.parametrize(("n", "n_stages"), [(9, 4), (10, 4), (13, 4), (64, 8), (64, 1)])
def test_every_sequence_has_its_turn(n: int, n_stages: int) -> None:
    made = virtual_pipeline(n_stages, two_at_a_time, trip=0.0005)
    rate(made, n)
    written = [request.n_output for request in made.requests]
    assert max(written) <= 1.1 * min(written)


@pytest.mark.parametrize(("n", "n_stages"), [(4, 1), (9, 1), (9, 2), (13, 4), (64, 8)])
def test_every_resident_gets_on_whatever_the_priorities(n: int, n_stages: int) -> None:
    made = virtual_pipeline(n_stages, two_at_a_time, trip=0.0005)
    for number in range(n):
        made.submit(priority=number % 4)
    made.run(until=END)
    for request in made.requests:
        rounds = [index for index, sent in enumerate(made.done) if request in sent.requests]
        gaps = [late - early for early, late in pairwise([*rounds, len(made.done)])]
        assert max(gaps) <= n + n_stages, request.priority


@pytest.mark.parametrize(("n", "n_stages"), [(8, 4), (16, 4), (24, 8)])
def test_one_more_step_than_stages_is_in_flight_only_when_it_is_full(n: int, n_stages: int) -> None:
    made = virtual_pipeline(n_stages, two_at_a_time, trip=0.0005)
    for _ in range(n):
        made.submit()
    made.run(until=WARM)
    most = 0
    for _ in range(200):
        made.advance()
        most = max(most, made.n_in_flight)
        assert n_trees(made.done[-1].step) == 2
    assert most == (n_stages + 1 if n > 2 * n_stages else n_stages)


def test_few_sequences_are_all_in_flight() -> None:
    for n_stages in (2, 4, 8):
        for n in range(1, 2 * n_stages + 1):
            made = virtual_pipeline(n_stages, two_at_a_time)
            rate(made, n)
            assert all(request.in_flight for request in made.requests), (n, n_stages)


def test_a_size_is_the_smallest_of_the_best() -> None:
    sizes = MicroBatches(4, 64, flat_costs(lambda batch: 4 * two_at_a_time(batch)))
    assert [sizes.size(n, 1) for n in (0, 1, 4, 5, 8, 9, 13, 64)] == [1, 1, 1, 2, 2, 2, 2, 2]
    wide = MicroBatches(4, 64, flat_costs(lambda batch: 4 * flat(batch)))
    assert [wide.size(n, 1) for n in (4, 5, 9, 13, 64)] == [1, 2, 3, 4, 16]
    assert [MicroBatches(4, 64).size(n, 1) for n in (0, 4, 5, 9, 64)] == [1, 1, 2, 3, 16]


def test_rows_decide_too() -> None:
    """Free sequences, dear rows: plain ones share a step, those with trees do not."""
    rows = {batch: ((batch, 64 * batch), (1.0, 1.0 + 63.0 * batch)) for batch in (1, 2, 4, 8, 16)}
    sizes = MicroBatches(2, 64, StepCosts(rows))
    assert sizes.size(32, 1) > 4 * sizes.size(32, 64)


@given(st.integers(0, 64), st.sampled_from([1, 2, 4, 8]), st.floats(1.0, 300.0))
def test_a_size_is_never_more_than_an_even_share(n: int, n_stages: int, rows: float) -> None:
    sizes = MicroBatches(n_stages, 64, flat_costs(flat))
    assert 1 <= sizes.size(n, rows) <= max(1, -(-n // n_stages))
