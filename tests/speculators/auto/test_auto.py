"""``auto`` drafts the nodes that pay; over many steps, claims are believed as far as they come true."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import Branch, Needs, Outcome
from engine.step_cost import StepCosts
from engine.tree import EMPTY_TREE, ROOT
from speculators.auto.calibration import DEPTHS
from speculators.auto.config import AutoConfig
from speculators.auto.ranking import rank
from speculators.auto.speculator import Auto
from speculators.method import SpeculatorOptions
from speculators.registry import create
from speculators.testing import HashTarget
from tests.speculators.auto.auto_sources import (
    FREE,
    TARGET,
    VOCAB,
    AutoRun,
    FakeSource,
    ReadBackSource,
    line,
    make_request,
    run_step,
    shared_out,
)
from tests.speculators.drafts import paths_of, tokens_of


@st.composite
def proposals(draw, name):
    """A tree with estimates, or None for a source that proposes nothing."""
    paths = draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=4))
    nodes = {}  # path -> index
    for path in paths:
        for end in range(1, len(path) + 1):
            nodes.setdefault(tuple(path[:end]), len(nodes))
    scores = draw(st.lists(st.floats(0.05, 1.0), min_size=len(nodes), max_size=len(nodes)))
    parents = [nodes.get(path[:-1], ROOT) for path in nodes]
    return Branch([path[-1] for path in nodes], name, parents, scores=scores) if nodes else None


def reach_by_path(branches):
    """Path -> path probability; a node of several sources has the highest estimate."""
    scores = {}
    for branch in branches:
        for path, score in zip(paths_of([branch]), branch.scores, strict=True):
            scores[path] = max(scores.get(path, 0.0), score)
    return {path: math.prod(scores[path[:end]] for end in range(1, len(path) + 1)) for path in scores}


@given(proposals("a"), proposals("b"), st.integers(0, 12), st.sampled_from([None, FREE, line(0.1), line(0.4)]))
def test_a_draft_is_the_best_part_of_all_proposals(one, other, budget, costs):
    proposed = [branch for branch in (one, other) if branch is not None]
    auto = Auto([FakeSource(branches=[branch] if branch else []) for branch in (one, other)], costs)
    request = make_request()
    auto.begin(request)
    drafts = auto.propose(request, budget)
    taken, reach = paths_of(drafts), reach_by_path(proposed)
    assert len(set(taken)) == len(taken) <= budget
    assert set(taken) <= set(reach)
    best = sorted(reach.values(), reverse=True)[:budget]
    assert sorted((reach[path] for path in taken), reverse=True) == pytest.approx(best[: len(taken)])
    assert len(taken) == (len(best) if costs is None else shared_out(costs, [best], 1)[0])
    for branch in drafts:
        assert len(branch.scores) == len(branch.tokens)
        if branch.proposers is not None:
            assert [set(names) for names in branch.proposers] == [
                {b.source for b in proposed if path in paths_of([b])} for path in taken
            ]


def test_a_budget_of_zero_drafts_nothing_and_asks_no_source():
    source = FakeSource()
    auto = Auto([source], FREE)
    decoding = AutoRun(auto, 2)
    assert decoding.step(budget=0) == [0, 0]
    assert source.asked == []
    assert auto.propose_batch((), ()) == []
    drafts = auto.propose_batch(decoding.requests, [0, 3])
    assert [len(paths_of(draft)) for draft in drafts] == [0, 3]
    assert decoding.step() == [8, 8]  # no pause came of it


@pytest.mark.parametrize("fails_in", ["begin", "propose", "observe", "end"])
def test_a_part_that_fails_harms_no_other_and_its_state_is_dropped(fails_in):
    broken, sound = FakeSource(name="broken", accuracy=0.0, fails_in=fails_in), FakeSource(name="sound", depth=3)
    auto = Auto([broken, sound], line(0.1))
    decoding = AutoRun(auto, 3)
    for _ in range(5):
        assert min(decoding.step()) >= 3
    decoding.end()
    decoding.end()  # a second time is harmless
    assert broken.live == sound.live == set()
    assert auto.states == {}
    assert all(part._failed == set() for part in auto._sources.every)


@pytest.mark.parametrize("catches_up", [True, False])
@pytest.mark.usefixtures("steady_clocks")
def test_a_request_backs_off_in_the_steps_whose_outcome_its_sources_skip(catches_up):
    source, n_pauses = ReadBackSource(claim=0.3, accuracy=0.0), 0
    source.catches_up = catches_up
    auto, request = Auto([source], line(0.5)), make_request()  # never worth it: pauses grow
    auto.begin(request)
    for _ in range(100):
        before = source.n_observed
        draft = run_step(auto, request)
        pauses = draft.decision is not None and not draft.decision.reads_back
        assert not (pauses and draft)
        assert source.n_observed == before + (not pauses)
        n_pauses += pauses
    assert (n_pauses > 50) == catches_up


@pytest.mark.parametrize("claim", [math.nan, math.inf])
def test_a_scope_recovers_from_claims_that_are_not_finite(claim):
    assert rank("auto", [Branch([1, 2], "source", [-1, 0], scores=[0.9, claim])], [1.0] * DEPTHS, 8).reach == [0.9, 0.0]
    source = FakeSource(claim=claim)
    auto = Auto([source], line(0.1))
    first = AutoRun(auto)
    assert not any(first.steps(30))
    first.end()
    source.claim = 0.9
    assert sum(AutoRun(auto, first=1).steps(30)) > 60, "a source that is right about all eight tokens of a draft"


def drawn(tokens, name="drawn"):
    return Branch(tokens, name, q=np.full((len(tokens), VOCAB), 1 / VOCAB, np.float32))


@pytest.mark.parametrize("costs", [None, FREE], ids=["no costs", "free"])
@pytest.mark.parametrize("special", [drawn([1, 2]), Branch([1, 2], "probing", probe=True)], ids=["drawn", "probe"])
def test_drawn_branches_and_probes_pass_untouched_where_nodes_are_free(costs, special):
    ranked = Branch([3, 4], "rest", scores=[0.9, 0.9])
    auto, request = Auto([FakeSource(branches=[special]), FakeSource(branches=[ranked])], costs), make_request()
    auto.begin(request)
    for _ in range(5):
        drafts = run_step(auto, request)
        assert any(branch is special for branch in drafts)
        assert len(tokens_of(drafts)) == 4


@pytest.mark.parametrize("per_row", [0.05, 0.3, 1.0])
def test_the_number_of_draws_that_are_kept_does_not_depend_on_the_tokens(per_row):
    """Or the acceptance test against ``q`` would not hold."""
    sizes = set()
    for tokens in ([1, 2, 3, 4, 5, 6], [9, 8, 7, 6, 5, 4], [3, 3, 3, 3, 3, 3]):
        auto, request = Auto([FakeSource(branches=[drawn(tokens)])], line(per_row)), make_request()
        auto.begin(request)
        drafts = auto.propose(request, 32)
        sizes.add(len(tokens_of(drafts)))
        for branch in drafts:
            assert branch.tokens == tokens[: len(branch.tokens)]
            assert branch.q.shape == (len(branch.tokens), VOCAB)
            assert branch.scores is None
    assert len(sizes) == 1
    assert (sizes == {0}) == (per_row == 1.0)
    assert sizes != {6}


def test_drawn_branches_of_one_request_leave_the_others_to_their_estimates():
    class HalfDrawnSource(FakeSource):
        def propose(self, request, budget):
            return super().propose(request, budget) if request.request_id % 2 else [drawn([1, 2])]

    for claim, sizes in ((0.9, [1, 5, 1, 5]), (0.05, [1, 0, 1, 0])):
        assert AutoRun(Auto([HalfDrawnSource(claim, depth=5)], line(0.1)), 4).step() == sizes


class ProbingSource(FakeSource):
    """Guesses nothing; probes eight branches of four nodes."""

    needs = Needs(probe_top_k=4)

    def __init__(self) -> None:
        super().__init__(branches=[Branch([row, 1, 2, 3], "source", probe=True) for row in range(8)])


@pytest.mark.parametrize(
    ("per_row", "least", "most"), [(0.0, 32, 32), (0.002, 1, 32), (0.04, 4, 8), (0.2, 0, 0), (100.0, 0, 0)]
)
def test_probes_are_kept_whole_as_far_as_they_pay_and_given_up_when_they_bring_nothing(per_row, least, most):
    decoding = AutoRun(Auto([ProbingSource()], line(per_row)))
    sizes = decoding.steps(1000 if 0.0 < per_row < 0.2 else 1)
    assert least <= sizes[0] <= most
    assert sizes[0] % 4 == 0
    if len(sizes) > 1:
        assert sum(sizes[200:]) * per_row < 0.02 * 800  # seconds, of steps that take one
        assert any(sizes[200:]) == (per_row < 0.04), "tried again some day"


def asked_steps(costs, source, n_steps, config=None):
    """Steps in which the source was asked for a draft, and nodes per step."""
    decoding = AutoRun(Auto([source], costs, config))
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
    source = FakeSource(claim=0.3, accuracy=0.0) if proposes else FakeSource(branches=[])
    steps, sizes = asked_steps(line(0.5), source, 200, AutoConfig(longest_pause=longest))
    assert not any(sizes)
    gaps = [later - earlier - 1 for earlier, later in itertools.pairwise(steps)]
    assert gaps == [int(min(2.0 ** (i - 2), longest)) for i in range(len(gaps))]
    assert len(gaps) > 5
    assert steps[0] == 0


@pytest.mark.parametrize("per_row", [0.2, 0.6])
def test_later_requests_use_a_source_that_was_wrong_for_earlier_ones(per_row):
    bad, good = FakeSource(claim=0.9, accuracy=0.0), FakeSource(claim=0.9)
    auto = Auto([bad], line(per_row))
    for number in range(5):
        decoding = AutoRun(auto, first=number)
        decoding.steps(60)
        decoding.end()
    bad.accuracy = 1.0
    later = AutoRun(auto, first=9).steps(150)
    assert min(later[-30:]) >= AutoRun(Auto([good], line(per_row)), first=9).steps(150)[-1] - 1


def test_claims_are_scaled_to_the_rate_at_which_they_come_true():
    honest = AutoRun(Auto([FakeSource(claim=0.3, accuracy=0.3)], line(0.05)))
    boasting = AutoRun(Auto([FakeSource(claim=0.9, accuracy=0.3)], line(0.05)))
    first = boasting.steps(5)
    honest.steps(100)
    boasting.steps(95)
    assert min(first) >= 4
    assert np.mean(boasting.steps(50)) < 1.5 * np.mean(honest.steps(50))
    sizes = AutoRun(Auto([FakeSource(claim=0.2)], line(0.05))).steps(150)
    assert sizes[0] == 1
    assert sizes[-1] == 2, "raised, but to no more than twice"


def test_a_tree_that_was_not_run_proves_nothing():
    auto, request, sizes = Auto([FakeSource(claim=0.9, accuracy=0.0)], line(0.3)), make_request(), set()
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
    decoding = AutoRun(create("auto", SpeculatorOptions(step_costs=costs)), target=target)
    decoding.steps(200)
    seconds = sum(float(costs.seconds(1, [rows])[0]) for rows in decoding.rows)
    assert decoding.n_tokens / seconds > tokens_per_second


def test_requests_are_calibrated_apart():
    source = FakeSource(claim=0.9)
    auto = Auto([source], line(0.3))
    right, wrong = AutoRun(auto, first=0), AutoRun(auto, first=1)
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
    class SlowSource(FakeSource):
        def propose(self, request, budget):
            clock.seconds += drafting if len(self.asked) < n_slow else 0.0
            return super().propose(request, budget)

    sizes = AutoRun(Auto([SlowSource(depth=4)], StepCosts({1: ((1, 100), (step, 1.1 * step))}))).steps(60)
    assert sizes[0] == 4
    assert sizes[-30:] == [4 if kept else 0] * 30


@pytest.mark.parametrize("of_prompts", [True, False])
def test_learning_answers_counts_as_drafting_time_and_learning_prompts_does_not(clock, of_prompts):
    class SlowlyLearningSource(FakeSource):
        needs = Needs(node_top_k=4)

        def observe(self, request, outcome):
            if (outcome.n_read > 0) == of_prompts:
                clock.seconds += 0.01

    auto = Auto([SlowlyLearningSource(depth=4)], StepCosts({1: ((1, 100), (0.001, 0.0011))}))
    decoding, sizes = AutoRun(auto), []
    for number in range(1, 30):  # a request begins in every step
        other = make_request(number)
        auto.begin(other)
        auto.observe(other, Outcome([1], EMPTY_TREE, n_read=len(other.context)))
        sizes += decoding.step()
    assert sizes[0] == 4
    assert (sizes[-1] == 4) == of_prompts
