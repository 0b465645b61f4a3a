"""``auto`` over many steps: what sources claim is believed as far as it comes true, request by request."""

import itertools
import time

import numpy as np
import pytest

from engine.protocol import Needs, Outcome
from engine.step_cost import StepCosts
from engine.tree import EMPTY_TREE
from speculators.auto.config import AutoConfig
from speculators.auto.speculator import Auto
from speculators.registry import SpeculatorOptions, create
from speculators.testing import HashTarget
from tests.support.auto_sources import FREE, TARGET, VOCAB, Decoding, Fixed, Source, first_draft, line, make_request

# -- over many steps -------------------------------------------------------------------------------------------------


def asked_steps(costs, source, n_steps, config=None):
    """Steps in which the source was asked for a draft, and nodes per step."""
    decoding = Decoding(Auto([source], costs, config))
    steps, sizes = [], []
    for step in range(n_steps):
        before = len(source.asked)
        sizes += decoding.step()
        if len(source.asked) > before:
            steps.append(step)
    return steps, sizes


@pytest.mark.parametrize("longest", [1, 2, 8, 32])
def test_where_nothing_pays_pauses_double_up_to_the_longest(longest):
    steps, sizes = asked_steps(line(0.5), Source(claim=0.3, accuracy=0.0), 200, AutoConfig(longest_pause=longest))
    assert not any(sizes)
    gaps = [later - earlier - 1 for earlier, later in itertools.pairwise(steps)]
    assert gaps == [int(min(2.0 ** (i - 2), longest)) for i in range(len(gaps))]
    assert len(gaps) > 5
    assert steps[0] == 0


def test_a_source_that_has_nothing_is_left_alone_too():
    steps, sizes = asked_steps(FREE, Fixed([]), 200)
    assert not any(sizes)
    assert len(steps) < 50


@pytest.mark.parametrize("per_row", [0.1, 0.2, 0.4])
@pytest.mark.parametrize("claim", [0.7, 0.95])
def test_a_source_that_is_always_wrong_is_given_up_and_tried_again_now_and_then(per_row, claim):
    steps, sizes = asked_steps(line(per_row), Source(claim, accuracy=0.0), 1000)
    assert sizes[0] > 1
    assert 0 in sizes[:40]
    late = sizes[200:]
    assert sum(late) * per_row < 0.06 * len(late)  # seconds lost to its drafts, of steps that take one
    assert any(late)
    assert any(step > 900 for step in steps)


def test_a_source_that_is_always_right_drafts_deep():
    decoding = Decoding(Auto([Source(claim=0.9)], line(0.2)))
    sizes = decoding.steps(60)
    assert min(sizes) >= 5
    assert decoding.n_tokens == 60 + sum(sizes)


@pytest.mark.parametrize("per_row", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("claim", [0.7, 0.9])
def test_a_bad_phase_is_over_when_it_is_over(per_row, claim):
    source = Source(claim=claim)
    decoding = Decoding(Auto([source], line(per_row)))
    before = decoding.steps(30)
    source.accuracy = 0.0
    during = decoding.steps(100)
    source.accuracy = 1.0
    after = decoding.steps(200)
    assert before[-1] > 0
    assert sum(during[-50:]) < sum(before)
    assert sum(after[:100]) > 0
    assert min(after[-30:]) >= before[-1] - 1


@pytest.mark.parametrize("per_row", [0.2, 0.6])
def test_what_one_request_could_not_use_is_not_kept_from_all_later_ones(per_row):
    bad, good = Source(claim=0.9, accuracy=0.0), Source(claim=0.9)
    auto = Auto([bad], line(per_row))
    for number in range(5):
        decoding = Decoding(auto, first=number)
        decoding.steps(60)
        decoding.end()
    bad.accuracy = 1.0
    later = Decoding(auto, first=9).steps(150)
    assert min(later[-30:]) >= Decoding(Auto([good], line(per_row)), first=9).steps(150)[-1] - 1


def test_claims_that_are_too_high_are_shrunk_to_what_comes_true():
    honest = Decoding(Auto([Source(claim=0.3, accuracy=0.3)], line(0.05)))
    boasting = Decoding(Auto([Source(claim=0.9, accuracy=0.3)], line(0.05)))
    first = boasting.steps(5)
    honest.steps(100)
    boasting.steps(95)
    assert min(first) >= 4
    assert np.mean(boasting.steps(50)) < 1.5 * np.mean(honest.steps(50))


def test_claims_that_are_too_low_are_raised_but_not_above_twice():
    modest = Decoding(Auto([Source(claim=0.2)], line(0.05)))
    sizes = modest.steps(150)
    assert sizes[0] == first_draft(line(0.05), Source(claim=0.2)) == 1
    assert sizes[-1] == first_draft(line(0.05), Source(claim=0.4)) == 2


def test_a_tree_that_was_not_run_proves_nothing():
    auto = Auto([Source(claim=0.9, accuracy=0.0)], line(0.3))
    request = make_request()
    auto.begin(request)
    sizes = []
    for _ in range(50):
        (branch,) = auto.propose(request, 32)
        sizes.append(len(branch.tokens))
        outcome = TARGET.score(request.context.view.tolist(), EMPTY_TREE)  # short of memory, its draft went first
        request.context.extend(outcome.tokens)
        auto.observe(request, outcome)
    assert len(set(sizes)) == 1


def test_unpredictable_text_costs_nearly_nothing():
    costs = line(0.08)
    decoding = Decoding(create("auto", SpeculatorOptions(step_costs=costs)), target=HashTarget(4096, 4096))
    decoding.steps(300)
    seconds = sum(float(costs.seconds(1, [rows])[0]) for rows in decoding.rows)
    assert decoding.n_tokens / seconds > 0.97


@pytest.mark.parametrize("per_row", [0.0, 0.05, 0.2])
def test_text_that_repeats_itself_becomes_faster_the_cheaper_the_nodes_are(per_row):
    costs = line(per_row)
    decoding = Decoding(create("auto", SpeculatorOptions(step_costs=costs)), target=HashTarget(VOCAB, 1))
    decoding.steps(200)
    seconds = sum(float(costs.seconds(1, [rows])[0]) for rows in decoding.rows)
    assert decoding.n_tokens / seconds > {0.0: 10, 0.05: 5, 0.2: 2.5}[per_row]


# -- side by side ----------------------------------------------------------------------------------------------------


class ByRequest(Source):
    """Even requests are predictable and it knows it; odd ones are not."""

    def propose(self, request, budget):
        is_even = request.request_id % 2 == 0
        self.claim, self.accuracy = (0.9, 0.95) if is_even else (0.25, 0.1)
        return super().propose(request, budget)


def test_nodes_go_to_the_request_that_can_use_them():
    source = ByRequest()
    decoding = Decoding(Auto([source], line(0.15)), 2)
    sizes = np.array([decoding.step() for _ in range(100)])
    assert sizes[:, 0].mean() > 6
    assert sizes[:, 1].mean() < 0.5
    assert source.asked.count(0) == 100
    assert source.asked.count(1) < 50


def test_a_step_is_filled_once_by_however_many_requests():
    """Sixteen rows are free, more are not: alone a request may have them all, in company its share."""
    full = (16, 17, 200), (1.0, 2.0, 185.0)
    costs = StepCosts({1: ((1, *full[0]), (1.0, *full[1])), 12: ((12, *full[0]), (1.0, *full[1]))})
    for n in (1, 2, 4, 8, 12):
        decoding = Decoding(Auto([Source(claim=0.9, depth=20)], costs), n)
        sizes = decoding.step()
        assert sum(sizes) == 16 - n
        assert max(sizes) - min(sizes) <= 1  # all are as predictable


def test_requests_are_calibrated_apart():
    source = Source(claim=0.9)
    auto = Auto([source], line(0.3))
    right, wrong = Decoding(auto, first=0), Decoding(auto, first=1)
    good, bad = [], []
    for _ in range(120):
        source.accuracy = 1.0
        good += right.step()
        source.accuracy = 0.0
        bad += wrong.step()
    assert min(good[20:]) >= 4
    assert sum(size > 0 for size in bad[60:]) <= 6  # it is tried again now and then


# -- the time drafting takes -----------------------------------------------------------------------------------------


class Slow(Source):
    """Takes its time, in the first ``n_slow`` drafts."""

    seconds = 0.01
    n_slow = 10**6

    def propose(self, request, budget):
        if len(self.asked) < self.n_slow:
            time.sleep(self.seconds)
        return super().propose(request, budget)


def test_a_source_slower_than_the_steps_it_saves_is_dropped():
    fast = StepCosts({1: ((1, 100), (0.0005, 0.0006))})
    sizes = Decoding(Auto([Slow(depth=4)], fast)).steps(60)
    assert sizes[0] == 4
    assert not any(sizes[-30:])


def test_the_first_draft_of_a_process_may_take_long():
    source = Slow(depth=4)
    source.seconds, source.n_slow = 0.2, 1
    fast = StepCosts({1: ((1, 100), (0.003, 0.0031))})
    assert Decoding(Auto([source], fast)).steps(20)[1:] == [4] * 19


@pytest.mark.parametrize("of_prompts", [True, False])
def test_learning_prompts_takes_no_time_from_drafts_and_learning_answers_does(of_prompts):
    class SlowLearner(Source):
        needs = Needs(node_top_k=4)

        def observe(self, request, outcome):
            if (outcome.n_read > 0) == of_prompts:
                time.sleep(0.01)

    auto = Auto([SlowLearner(depth=4)], StepCosts({1: ((1, 100), (0.001, 0.0011))}))
    decoding, sizes = Decoding(auto), []
    for number in range(1, 30):  # a request begins beside every step
        other = make_request(number)
        auto.begin(other)
        auto.observe(other, Outcome([1], EMPTY_TREE, n_read=len(other.context)))
        sizes += decoding.step()
    assert sizes[0] == 4
    assert (sizes[-1] == 4) == of_prompts
