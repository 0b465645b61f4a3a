"""Chunks of prompts and micro-batches: the real scheduler, and stages on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scheduling.batching_policy import BatchingPolicy
from engine.scheduling.scheduler import Scheduler, SchedulerOptions
from engine.scheduling.sequence import SequenceState
from engine.step import Step
from engine.step_cost import StepCosts
from tests.support.virtual_pipeline import INFO, VirtualPipeline, n_prompt_rows, virtual_pipeline

BASE, ROW = 0.004, 0.0001  # seconds that a stage takes for a step, and for each row of a prompt in it
DECODE = {batch: ((batch, 65 * batch), (BASE, BASE)) for batch in (1, 2, 4, 8, 16)}


def costs(n_stages: int = 1, row: float = ROW) -> StepCosts:
    """Costs of ``stage_seconds`` through all stages."""
    curve = (1, 64, 512), tuple(n_stages * (BASE + row * rows) for rows in (1, 64, 512))
    curves = {batch: (rows, tuple(n_stages * s for s in seconds)) for batch, (rows, seconds) in DECODE.items()}
    return StepCosts(curves, {0: curve})


def stage_seconds(step: Step) -> float:
    return BASE + ROW * n_prompt_rows(step)


def pipeline(n_stages: int, max_stall: float, is_measured: bool = True) -> VirtualPipeline:
    options = SchedulerOptions(n_micro_batches=n_stages, max_stall=max_stall, prefix_cache=False)
    return VirtualPipeline(
        Scheduler(BatchingPolicy(INFO, options, costs(n_stages) if is_measured else None)), stage_seconds
    )


def gaps(made: VirtualPipeline, first: float, last: float) -> list[float]:
    """Seconds between two tokens of one sequence, for those answered between two moments."""
    heard: dict[int, float] = {}
    found = []
    for sent in made.done:
        for work in sent.step.work:
            if work.tree is not None:
                if first < sent.answered <= last and work.seq in heard:
                    found.append(sent.answered - heard[work.seq])
                heard[work.seq] = sent.answered
    return found


@pytest.mark.parametrize(("n_stages", "max_stall"), [(1, 0.03), (2, 0.06), (4, 0.03)])
def test_long_prompts_delay_no_token_by_more_than_allowed(n_stages: int, max_stall: float) -> None:
    made = pipeline(n_stages, max_stall)
    for _ in range(n_stages):
        made.submit()
    made.run(until=1.0)
    quiet = max(gaps(made, 0.5, 1.0))
    late = made.submit([5] * 4000)
    made.run(until=5.0)
    assert late.n_output > 0
    assert quiet < max(gaps(made, 1.0, 5.0)) <= quiet + max_stall + 1e-6
    for _ in range(2 * n_stages):
        made.submit([5] * 3000)
    made.run(until=6.0)
    assert max(gaps(made, 5.0, 6.0)) <= quiet + 2 * max_stall, "several prompts at once"


@pytest.mark.parametrize(("n_stages", "n_chunks"), [(1, 3), (2, 40), (4, 1), (8, 40)])
def test_a_prompt_alone_is_read_at_the_speed_of_the_pipeline(n_stages: int, n_chunks: int) -> None:
    made = pipeline(n_stages, 0.01)
    request = made.submit([5] * 512 * n_chunks, max_tokens=1)
    made.run(until=0.0)
    while request.state is not SequenceState.FINISHED:
        assert made.n_in_flight <= n_stages
        made.advance()
    assert made.clock == pytest.approx((n_chunks + n_stages - 1) * (BASE + 512 * ROW))


@pytest.mark.parametrize(
    ("decodes", "is_measured", "sizes"),
    [(True, True, {299, 300}), (True, False, {512}), (False, True, {512})],  # 0.03 s at 0.0001 s a row
    ids=["decoding", "not measured", "alone"],
)
def test_chunks_are_as_large_as_the_limit_allows(decodes: bool, is_measured: bool, sizes: set[int]) -> None:
    made = pipeline(1, 0.03, is_measured)
    if decodes:
        made.submit()
        made.run(until=0.1)
    made.submit([5] * 3000)
    made.run(until=1.5)
    rows = [n_prompt_rows(sent.step) for sent in made.done if n_prompt_rows(sent.step) > 1]
    assert len(rows) > 5
    assert set(rows[:-1]) <= sizes


STAGE = 0.010  # seconds for a micro-batch of up to two sequences
WARM, END = 1.2, 4.0  # seconds


def two_at_a_time(batch: int) -> float:
    return STAGE * max(1.0, batch / 2)


def flat(batch: int) -> float:
    return STAGE * max(1.0, batch / 32)


def ideal(n: int, n_stages: int, at_once: int) -> float:
    """Sequence-steps per second: every sequence in flight all the time, or every stage busy all the time."""
    return min(n / (n_stages * STAGE), at_once / STAGE)


def rate(pipeline: VirtualPipeline, n: int, arrivals: float = 0.0) -> float:
    """Sequence-steps per second of ``n`` sequences that come ``arrivals`` seconds after each other."""
    for i in range(n):
        pipeline.run(until=i * arrivals)
        pipeline.submit()
    pipeline.run(until=END)
    return pipeline.steps_per_second(WARM, END)


@pytest.mark.parametrize(("stage_seconds", "at_once"), [(two_at_a_time, 2), (flat, 32)])
@pytest.mark.parametrize(("n_stages", "trip"), [(1, 0.0), (4, 0.0005), (8, 0.0)])
def test_stages_are_busy_with_any_number_of_sequences(
    n_stages: int, trip: float, stage_seconds: Callable[[int], float], at_once: int
) -> None:
    reached = {}
    for n in (1, 2, 3, 5, 8, 9, 13, 17, 31, 33, 64):
        made = virtual_pipeline(n_stages, stage_seconds, trip=trip, batches=(1, 2, 4, 8, 16, 32))
        reached[n] = rate(made, n) / ideal(n, n_stages, at_once)
    assert {n: share for n, share in reached.items() if share < 0.95} == {}


@given(
    n=st.integers(1, 64),
    n_stages=st.sampled_from([1, 2, 3, 4, 8]),
    gap=st.floats(0.0, 0.015),
    trip=st.floats(0.0, 0.0005),
)
def test_sequences_that_arrive_one_by_one_keep_stages_busy(n: int, n_stages: int, gap: float, trip: float) -> None:
    made = virtual_pipeline(n_stages, two_at_a_time, trip=trip)
    assert rate(made, n, arrivals=gap) >= 0.95 * ideal(n, n_stages, 2)


@pytest.mark.parametrize(("n", "n_stages"), [(4, 1), (9, 2), (13, 4), (64, 8)])
def test_every_sequence_has_its_turn_whatever_the_priorities(n: int, n_stages: int) -> None:
    made = virtual_pipeline(n_stages, two_at_a_time, trip=0.0005)
    for number in range(n):
        made.submit(priority=number % 4)
    made.run(until=END)
    for request in made.requests:
        rounds = [index for index, sent in enumerate(made.done) if request in sent.requests]
        gaps = [late - early for early, late in pairwise([*rounds, len(made.done)])]
        assert max(gaps) <= n + n_stages, request.priority
    equal = virtual_pipeline(n_stages, two_at_a_time, trip=0.0005)
    rate(equal, n)
    written = [request.n_output for request in equal.requests]
    assert max(written) <= 1.2 * min(written)
