"""Prompts are read as fast as decoding allows, and no faster: the real scheduler, stages on a virtual clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scheduling.chunk_budget import ChunkBudget
from engine.scheduling.scheduler import Scheduler, SchedulerOptions
from engine.scheduling.sequence import State
from engine.step import Step
from engine.step_cost import StepCosts
from tests.support.virtual_pipeline import INFO, VirtualPipeline, n_prompt_rows, n_trees

BASE, ROW = 0.004, 0.0001  # seconds of a stage: a step, and each of its rows of prompt
DECODE = {batch: ((batch, 65 * batch), (BASE, BASE)) for batch in (1, 2, 4, 8, 16)}


def costs(n_stages: int = 1, row: float = ROW) -> StepCosts:
    """As ``stage_seconds`` takes them, through all stages."""
    curve = (1, 64, 512), tuple(n_stages * (BASE + row * rows) for rows in (1, 64, 512))
    curves = {batch: (rows, tuple(n_stages * s for s in seconds)) for batch, (rows, seconds) in DECODE.items()}
    return StepCosts(curves, {0: curve})


def stage_seconds(step: Step) -> float:
    return BASE + ROW * n_prompt_rows(step)


def pipeline(n_stages: int, max_stall: float, is_measured: bool = True) -> VirtualPipeline:
    options = SchedulerOptions(n_micro_batches=n_stages, max_stall=max_stall, prefix_cache=False)
    return VirtualPipeline(Scheduler(INFO, options, costs(n_stages) if is_measured else None), stage_seconds)


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


@pytest.mark.parametrize("n_stages", [1, 2, 4])
@pytest.mark.parametrize("max_stall", [0.03, 0.06])
def test_a_long_prompt_delays_no_token_by_more_than_allowed(n_stages: int, max_stall: float) -> None:
    made = pipeline(n_stages, max_stall)
    for _ in range(n_stages):
        made.submit()
    made.run(until=1.0)
    quiet = max(gaps(made, 0.5, 1.0))
    late = made.submit([5] * 6000)
    made.run(until=8.0)
    assert late.n_output > 0
    assert quiet < max(gaps(made, 1.0, 8.0)) <= quiet + max_stall + 1e-6


@pytest.mark.parametrize("n_stages", [2, 4])
def test_many_prompts_at_once_delay_a_token_by_less_than_twice_as_much(n_stages: int) -> None:
    made = pipeline(n_stages, 0.04)
    for _ in range(n_stages):
        made.submit()
    made.run(until=1.0)
    quiet = max(gaps(made, 0.5, 1.0))
    for _ in range(2 * n_stages):
        made.submit([5] * 3000)
    made.run(until=2.0)
    assert max(gaps(made, 1.0, 2.0)) <= quiet + 2 * 0.04


@pytest.mark.parametrize("n_stages", [1, 2, 4, 8])
@pytest.mark.parametrize("n_chunks", [1, 3, 40])
def test_a_prompt_alone_is_read_at_the_speed_of_the_pipeline(n_stages: int, n_chunks: int) -> None:
    made = pipeline(n_stages, 0.01)
    request = made.submit([5] * 512 * n_chunks, max_tokens=1)
    made.run(until=0.0)
    while request.state is not State.FINISHED:
        assert made.n_in_flight <= n_stages
        made.advance()
    assert made.clock == pytest.approx((n_chunks + n_stages - 1) * (BASE + 512 * ROW))


@given(
    n_stages=st.sampled_from([1, 2, 4]),
    came=st.floats(0.0, 1.5),
    n_prompt=st.integers(1, 1500),
    length=st.integers(6000, 9000),
)
def test_whole_chunks_of_a_prompt_that_was_alone_come_between_no_two_tokens(
    n_stages: int, came: float, n_prompt: int, length: int
) -> None:
    made = pipeline(n_stages, 0.03)
    made.submit([5] * length, max_tokens=1)
    made.run(until=came)
    decoding = made.submit([5] * n_prompt)
    made.run(until=came + 3.0)
    assert decoding.n_output > 10
    assert max(gaps(made, 0.0, came + 3.0)) <= n_stages * BASE + 0.03 + 1e-6


@pytest.mark.parametrize("n_stages", [1, 2, 4])
def test_beside_others_that_decode_a_prompt_has_one_chunk_in_flight(n_stages: int) -> None:
    made = pipeline(n_stages, 0.03)
    made.submit()
    made.run(until=0.5)
    late = made.submit([5] * 3000)
    while late.n_output == 0:
        made.advance()
        assert late.in_flight <= 1
    assert made.clock > 0.5


def test_chunks_are_as_large_as_the_promise_allows() -> None:
    made = pipeline(1, 0.03)
    made.submit()
    made.run(until=0.5)
    made.submit([5] * 3000)
    made.run(until=1.5)
    rows = [n_prompt_rows(sent.step) for sent in made.done if n_trees(sent.step) and n_prompt_rows(sent.step)]
    assert len(rows) > 5
    assert set(rows[:-1]) <= {299, 300}  # 0.03 s at 0.0001 s a row


def test_while_no_sequence_decodes_chunks_are_whole() -> None:
    made = pipeline(2, 0.01)
    made.submit([5] * 3000)
    made.run(until=2.0)
    rows = [n_prompt_rows(sent.step) for sent in made.done if n_prompt_rows(sent.step)]
    assert rows == [512] * 5 + [440]


def test_unmeasured_chunks_are_whole() -> None:
    made = pipeline(1, 0.01, is_measured=False)
    made.submit()
    made.run(until=0.1)
    made.submit([5] * 1000)
    made.run(until=1.0)
    assert max(n_prompt_rows(sent.step) for sent in made.done) == 512


def test_a_prompt_comes_to_an_end_whatever_it_costs() -> None:
    budget = ChunkBudget(512, 64, 0.001, costs(row=1.0))
    assert budget.rows(True, 10, 0) == 64
    assert ChunkBudget(48, 64, 0.001, costs(row=1.0)).rows(True, 10, 0) == 48


def test_several_short_prompts_share_the_budget_of_a_step() -> None:
    made = pipeline(1, 0.03)
    made.submit()
    made.run(until=0.5)
    for _ in range(5):
        made.submit([5] * 100)
    made.run(until=1.5)
    shared = [sent.step for sent in made.done if n_trees(sent.step) and n_prompt_rows(sent.step)]
    assert [n_prompt_rows(step) for step in shared] in ([299, 201], [300, 200])
    assert len([work for work in shared[0].work if work.tree is None]) >= 3


@given(
    max_stall=st.floats(0.001, 0.2),
    n_rows=st.integers(0, 300),
    context=st.integers(0, 5000),
    row=st.floats(1e-6, 1e-2),
    far=st.floats(1.0, 5.0),
)
def test_a_budget_is_the_most_that_fits(max_stall: float, n_rows: int, context: int, row: float, far: float) -> None:
    near = (1, 512), (BASE + row, BASE + 512 * row)
    made = StepCosts(DECODE, {0: near, 2048: (near[0], (far * near[1][0], far * near[1][1]))})
    rows = ChunkBudget(512, 64, max_stall, made).rows(True, n_rows, context)
    seconds = made.prompt_seconds(context, range(n_rows, n_rows + 514))
    assert rows == 64 or seconds[rows] - seconds[0] <= max_stall
    assert rows == 512 or seconds[rows + 1] - seconds[0] > max_stall
