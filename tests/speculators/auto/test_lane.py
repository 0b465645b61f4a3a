"""What the steps of a lane may cost, and which arms its streams get."""

from __future__ import annotations

import pytest

from engine.protocol import Outcome, StepTime
from engine.step_cost import StepCosts
from engine.tree import EMPTY_TREE, TokenTree
from speculators.auto.arms import choose
from speculators.auto.lane import FIXED_STREAMS, RESUME, LaneCosts
from speculators.auto.speculator import Auto
from speculators.auto.streams import ALL, OFF, TEXT, ScopeState, StreamState
from tests.speculators.auto.auto_sources import AutoRun, ReadBackSource, TextSource, line

CHAIN = TokenTree([1, 2, 3], [-1, 0, 1])
ASKING = [StreamState(ScopeState(), (), TEXT)]


def plain_steps(lane: LaneCosts, n: int) -> None:
    for _ in range(n):
        lane.charge([Outcome([5], EMPTY_TREE, step=StepTime(1.0, 1, 1, 10.0))], lane.price(1), 1e-5)


def test_an_account_that_could_not_pay_allows_no_draft_before_it_holds_enough_for_nodes():
    lane = LaneCosts(line(0.1), 0.01)
    plain_steps(lane, 1)
    lane.account.add(0.0, -4.0, 1.0)
    assert lane.plan(ASKING).highest == OFF
    plain_steps(lane, 10)
    assert 0.05 < lane.plan(ASKING).room < RESUME
    assert lane.plan(ASKING).highest == OFF
    plain_steps(lane, 50)
    assert lane.plan(ASKING).highest == ALL


@pytest.mark.parametrize("step", [StepTime(1.3, 1, 4, 10.0), None])
def test_tokens_of_steps_with_and_without_prompt_chunks_refill_the_account(step):
    lane = LaneCosts(line(0.1), 0.01)
    plain_steps(lane, 1)
    lane.account.add(0.0, -4.0, 1.0)
    before = lane.room(lane.price(1))
    lane.charge([Outcome([1, 2, 9], CHAIN, [0, 1], step=step)], lane.price(1), 1e-5)
    assert lane.room(lane.price(1)) - before == pytest.approx(2.0 - 0.3, abs=0.02)


def test_prompts_are_read_back_for_as_many_requests_as_the_account_can_pay():
    lane = LaneCosts(StepCosts(line(0.1).curves, prompt_row=0.1), 0.01)
    price = lane.price(1)
    assert [lane.can_read_prompt(n, 0, price) for n in (30, 50)] == [True, False]
    assert [lane.can_read_prompt(9, waiting, price) for waiting in (9, 18)] == [True, False]
    lane.charge_prompt(9)
    assert lane.room(price) == pytest.approx(4.0 - 0.9)


@pytest.mark.parametrize(("prefers", "gets"), [(1, 0), (2, 0), (16, 16)])
def test_an_arm_is_used_if_all_streams_that_prefer_it_gain_what_a_step_with_it_takes(prefers, gets):
    costs = line(0.0)
    auto = Auto([TextSource(accuracy=0.0), ReadBackSource(accuracy=0.0)], costs)
    run = AutoRun(auto, 16, costs=costs)
    run.steps(2)
    lane, states = auto._lane, list(auto.states.values())
    share = lane.share(lane.price(16))
    lane.host[ALL] = 0.1 * share / 2.5  # a stream's part, in tokens: 0.1
    least = 0.1 * (1 + FIXED_STREAMS[ALL] / 16)  # tokens that each of 16 streams must gain
    for i, state in enumerate(states):
        state.trial, state.load = 0, 1.0
        state.gains[TEXT].total, state.gains[TEXT].weight = -1e6, 1e6
        state.gains[ALL].total, state.gains[ALL].weight = 1e6 * (1.1 * least if i < prefers else -1.0), 1e6
    lane.trials.add(0.0, -1e9, 1.0)  # no trial begins
    choose(states, states, auto._arms, lane)
    assert sum(state.arm == ALL for state in states) == gets
    assert all(state.arm in (OFF, ALL) for state in states)


@pytest.mark.parametrize("source", [TextSource, ReadBackSource])
def test_a_trial_ends_even_if_the_account_allows_no_draft(source):
    costs = line(0.1)
    auto = Auto([source(accuracy=0.0)], costs)
    run = AutoRun(auto, 1, costs=costs)
    state = auto.states[0]
    state.try_arm(auto._arms[-1], 8, 0)
    auto._lane.trials.add(0.0, -1e9, 1.0)  # no other begins
    auto._lane.account.add(0.0, -1e9, 1.0)
    run.steps(12)
    assert state.trial == 0
