"""``auto`` over many steps: claims are believed as far as they come true, request by request."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from engine.protocol import Needs, Outcome
from engine.step_cost import StepCosts
from engine.tree import EMPTY_TREE
from speculators.auto.config import AutoConfig
from speculators.auto.speculator import Auto
from speculators.registry import SpeculatorOptions, create
from speculators.testing import HashTarget
from tests.support.auto_sources import TARGET, VOCAB, Decoding, Source, first_draft, line, make_request


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


@pytest.mark.parametrize("longest", [1, 8, 32])
@pytest.mark.parametrize("proposes", [True, False])
def test_where_nothing_pays_pauses_double_up_to_the_longest(longest, proposes):
    source = Source(claim=0.3, accuracy=0.0) if proposes else Source(branches=[])
    steps, sizes = asked_steps(line(0.5), source, 200, AutoConfig(longest_pause=longest))
    assert not any(sizes)
    gaps = [later - earlier - 1 for earlier, later in itertools.pairwise(steps)]
    assert gaps == [int(min(2.0 ** (i - 2), longest)) for i in range(len(gaps))]
    assert len(gaps) > 5
    assert steps[0] == 0


@pytest.mark.parametrize(("per_row", "claim"), [(0.1, 0.7), (0.2, 0.95), (0.4, 0.95)])
def test_a_source_that_is_always_wrong_is_given_up_and_tried_again_now_and_then(per_row, claim):
    steps, sizes = asked_steps(line(per_row), Source(claim, accuracy=0.0), 600)
    assert sizes[0] > 1
    assert 0 in sizes[:40]
    late = sizes[200:]
    assert sum(late) * per_row < 0.06 * len(late)  # seconds lost to its drafts, of steps that take one
    assert any(step > 500 for step in steps)


@pytest.mark.parametrize("per_row", [0.2, 0.6])
def test_later_requests_use_a_source_that_was_wrong_for_earlier_ones(per_row):
    bad, good = Source(claim=0.9, accuracy=0.0), Source(claim=0.9)
    auto = Auto([bad], line(per_row))
    for number in range(5):
        decoding = Decoding(auto, first=number)
        decoding.steps(60)
        decoding.end()
    bad.accuracy = 1.0
    later = Decoding(auto, first=9).steps(150)
    assert min(later[-30:]) >= Decoding(Auto([good], line(per_row)), first=9).steps(150)[-1] - 1


def test_claims_are_scaled_to_the_rate_at_which_they_come_true():
    honest = Decoding(Auto([Source(claim=0.3, accuracy=0.3)], line(0.05)))
    boasting = Decoding(Auto([Source(claim=0.9, accuracy=0.3)], line(0.05)))
    first = boasting.steps(5)
    honest.steps(100)
    boasting.steps(95)
    assert min(first) >= 4
    assert np.mean(boasting.steps(50)) < 1.5 * np.mean(honest.steps(50))
    sizes = Decoding(Auto([Source(claim=0.2)], line(0.05))).steps(150)
    assert sizes[0] == first_draft(line(0.05), Source(claim=0.2)) == 1
    assert sizes[-1] == first_draft(line(0.05), Source(claim=0.4)) == 2, "raised, but to no more than twice"


def test_a_tree_that_was_not_run_proves_nothing():
    auto, request, sizes = Auto([Source(claim=0.9, accuracy=0.0)], line(0.3)), make_request(), set()
    auto.begin(request)
    for _ in range(50):
        (branch,) = auto.propose(request, 32)
        sizes.add(len(branch.tokens))
        outcome = TARGET.score(request.context.view.tolist(), EMPTY_TREE)  # dropped for lack of memory
        request.context.extend(outcome.tokens)
        auto.observe(request, outcome)
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ("target", "per_row", "tokens_per_second"),
    [
        (HashTarget(4096, 4096), 0.08, 0.97),  # unpredictable: nearly nothing is lost
        (HashTarget(VOCAB, 1), 0.0, 10),
        (HashTarget(VOCAB, 1), 0.05, 5),
        (HashTarget(VOCAB, 1), 0.2, 2.5),
    ],
)
def test_repetitive_text_gains_what_its_nodes_cost_and_other_text_loses_nothing(target, per_row, tokens_per_second):
    costs = line(per_row)
    decoding = Decoding(create("auto", SpeculatorOptions(step_costs=costs)), target=target)
    decoding.steps(200)
    seconds = sum(float(costs.seconds(1, [rows])[0]) for rows in decoding.rows)
    assert decoding.n_tokens / seconds > tokens_per_second


@pytest.mark.parametrize("n", [1, 2, 4, 8, 12])
def test_requests_share_the_free_rows_of_a_step(n):
    """Sixteen rows are free, more are not."""
    full = (16, 17, 200), (1.0, 2.0, 185.0)
    costs = StepCosts({1: ((1, *full[0]), (1.0, *full[1])), 12: ((12, *full[0]), (1.0, *full[1]))})
    sizes = Decoding(Auto([Source(claim=0.9, depth=20)], costs), n).step()
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


@pytest.mark.parametrize(
    ("step", "drafting", "n_slow", "kept"),
    [(0.0005, 0.01, 60, False), (0.003, 0.2, 1, True)],
    ids=["slower than the steps it saves", "slow in the first draft of a process"],
)
def test_a_slow_source_is_dropped_unless_only_its_first_draft_is_slow(clock, step, drafting, n_slow, kept):
    class Slow(Source):
        def propose(self, request, budget):
            clock.seconds += drafting if len(self.asked) < n_slow else 0.0
            return super().propose(request, budget)

    sizes = Decoding(Auto([Slow(depth=4)], StepCosts({1: ((1, 100), (step, 1.1 * step))}))).steps(60)
    assert sizes[0] == 4
    assert sizes[-30:] == [4 if kept else 0] * 30


@pytest.mark.parametrize("of_prompts", [True, False])
def test_learning_answers_counts_as_drafting_time_and_learning_prompts_does_not(clock, of_prompts):
    class SlowLearner(Source):
        needs = Needs(node_top_k=4)

        def observe(self, request, outcome):
            if (outcome.n_read > 0) == of_prompts:
                clock.seconds += 0.01

    auto = Auto([SlowLearner(depth=4)], StepCosts({1: ((1, 100), (0.001, 0.0011))}))
    decoding, sizes = Decoding(auto), []
    for number in range(1, 30):  # a request begins in every step
        other = make_request(number)
        auto.begin(other)
        auto.observe(other, Outcome([1], EMPTY_TREE, n_read=len(other.context)))
        sizes += decoding.step()
    assert sizes[0] == 4
    assert (sizes[-1] == 4) == of_prompts
