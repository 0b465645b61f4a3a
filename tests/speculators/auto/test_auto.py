"""``auto``: which sources draft, which nodes are taken, and what it learns from answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import Branch, Needs, Outcome
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.step_cost import StepCosts
from engine.tree import EMPTY_TREE, ROOT
from speculators.auto.config import AutoConfig
from speculators.auto.speculator import Auto
from speculators.auto.streams import ALL, TEXT, StreamState
from speculators.method import SpeculatorOptions
from speculators.mixing.merged import ranked
from speculators.registry import create
from speculators.testing import HashTarget
from tests.speculators.auto.auto_sources import (
    FREE,
    VOCAB,
    AutoRun,
    FakeSource,
    ReadBackSource,
    TextSource,
    line,
    make_request,
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
    auto = Auto([ReadBackSource(branches=[branch] if branch else []) for branch in (one, other)], costs)
    request = make_request()
    auto.begin(request)
    auto.states[0].arm = ALL
    drafts = auto.propose(request, budget)
    taken, reach = paths_of(drafts), reach_by_path(proposed)
    assert len(set(taken)) == len(taken) <= budget
    assert set(taken) <= set(reach)
    best = sorted(reach.values(), reverse=True)[:budget]
    assert sorted((reach[path] for path in taken), reverse=True) == pytest.approx(best[: len(taken)])
    price = 0.0 if costs is None else float(np.diff(costs.seconds(1, [1, 2]))[0])
    assert len(taken) == sum(p > price for p in best), "as many as are worth more than they cost"
    for branch in drafts:
        if branch.proposers is not None:
            assert [set(names) for names in branch.proposers] == [
                {b.source for b in proposed if path in paths_of([b])} for path in taken
            ]


@pytest.mark.parametrize(
    ("sources", "text", "every"),
    [
        ((), ["pld"], ["suffix+token-recycling"]),
        (("pld", "spectra-core"), ["pld"], ["pld", "spectra-core"]),
        (("prediction", "token-recycling"), ["token-recycling"], ["token-recycling"]),
        (("pld",), ["pld"], ["pld"]),
    ],
)
def test_the_text_arm_asks_sources_without_needs_and_the_mixed_model_replaces_them(sources, text, every):
    auto = create("auto", SpeculatorOptions().with_settings(AutoConfig(sources=sources)))
    found = auto._sources
    assert [part.name for part in found.text] == text
    assert [part.name for part in found.all] == every
    assert auto._arms == ([TEXT] if sources == ("pld",) else [TEXT, ALL])
    assert [part.name for part, _ in found._of_request] == ["prediction"]


def test_a_budget_of_zero_drafts_nothing_and_asks_no_source():
    source = TextSource()
    auto = Auto([source], FREE)
    decoding = AutoRun(auto, 2)
    assert decoding.step(budget=0) == [0, 0]
    assert source.asked == []
    assert auto.propose_batch((), ()) == []
    drafts = auto.propose_batch(decoding.requests, [0, 3])
    assert [len(paths_of(draft)) for draft in drafts] == [0, 3]


@pytest.mark.parametrize("fails_in", ["begin", "propose", "observe", "end"])
def test_a_part_that_fails_harms_no_other_and_its_state_is_dropped(fails_in):
    broken, sound = ReadBackSource(name="broken", fails_in=fails_in), ReadBackSource(name="sound", depth=3)
    auto = Auto([broken, sound], line(0.1))
    decoding = AutoRun(auto, 3, costs=line(0.1))
    assert sum(decoding.steps(40)) > 100
    decoding.end()
    decoding.end()  # a second time is harmless
    assert broken.live == sound.live == set()
    assert auto.states == {}
    assert all(part._failed == set() for part in auto._sources.every)


@pytest.mark.parametrize("claim", [math.nan, math.inf])
def test_a_scope_recovers_from_claims_that_are_not_finite(claim):
    source = ReadBackSource(claim=claim)
    auto = Auto([source], line(0.1))
    first = AutoRun(auto, costs=line(0.1))
    first.steps(30)
    first.end()
    source.claim = 0.9
    assert sum(AutoRun(auto, first=1, costs=line(0.1)).steps(80)) > 60, "it is right about all of its tokens"
    assert all(map(math.isfinite, auto._scope(make_request().request).calibrations[ALL].claimed))


def drawn(tokens, name="drawn"):
    return Branch(tokens, name, q=np.full((len(tokens), VOCAB), 1 / VOCAB, np.float32))


@pytest.mark.parametrize("costs", [None, FREE], ids=["no costs", "free"])
@pytest.mark.parametrize("special", [drawn([1, 2]), Branch([1, 2], "probing", probe=True)], ids=["drawn", "probe"])
def test_drawn_branches_and_probes_pass_untouched_where_nodes_are_free(costs, special):
    rest = Branch([3, 4], "rest", scores=[0.9, 0.9])
    auto, request = Auto([ReadBackSource(branches=[special]), ReadBackSource(branches=[rest])], costs), make_request()
    auto.begin(request)
    drafts = auto.propose(request, 32)
    assert len(tokens_of(drafts)) == 4
    (found,) = (branch for branch in drafts if branch.tokens == special.tokens)
    assert found.q is special.q
    assert found.probe == special.probe


@pytest.mark.parametrize("per_row", [0.05, 0.3, 1.0])
def test_the_number_of_draws_that_are_kept_does_not_depend_on_the_tokens(per_row):
    """Or the acceptance test against ``q`` would not hold."""
    sizes = set()
    for tokens in ([1, 2, 3, 4, 5, 6], [9, 8, 7, 6, 5, 4], [3, 3, 3, 3, 3, 3]):
        auto, request = Auto([ReadBackSource(branches=[drawn(tokens)])], line(per_row)), make_request()
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


@pytest.mark.parametrize(("per_row", "least", "most"), [(0.0, 32, 32), (0.04, 4, 8), (0.2, 0, 0), (100.0, 0, 0)])
def test_probes_are_kept_whole_as_far_as_they_are_worth_it(per_row, least, most):
    class ProbingSource(FakeSource):
        needs = Needs(probe_top_k=4)

    branches = [Branch([row, 1, 2, 3], "source", probe=True) for row in range(8)]
    auto, request = Auto([ProbingSource(branches=branches)], line(per_row)), make_request()
    auto.begin(request)
    auto.states[0].arm, auto.states[0].has_begun_all = ALL, True
    n = len(tokens_of(auto.propose(request, 32)))
    assert least <= n <= most
    assert n % 4 == 0


def test_branches_keep_their_order_when_they_are_ranked():
    chain, tree = Branch([1, 2, 3], "a", scores=[0.5] * 3), Branch([1, 4], "b", [-1, -1], scores=[0.9, 0.3])
    (best,) = ranked("both", [chain, tree], 3)
    assert best.tokens == [1, 2, 4]
    assert best.reach == pytest.approx([0.9, 0.45, 0.3])
    assert ranked("both", [chain], 3)[0].reach == pytest.approx([0.5, 0.25, 0.125])
    assert ranked("both", [], 3) == []


@pytest.mark.parametrize("n", [1, 16])
def test_a_source_that_is_wrong_ends_off_where_it_is_neither_asked_nor_reported_to(n):
    source = ReadBackSource(claim=0.9, accuracy=0.0)
    costs = line(0.2)
    decoding = AutoRun(Auto([source], costs), n, costs=costs)
    decoding.steps(400)
    asked = len(source.asked)
    decoding.steps(200)
    assert len(source.asked) - asked < 0.1 * 200 * n
    assert source.n_observed < 0.2 * 600 * n
    decided = [decision for decision in decoding.decided(1) if decision is not None]
    assert not any(decision.reads_back for decision in decided if decision.tier == "off")


def test_a_source_that_becomes_right_is_found_again_and_later_requests_profit():
    source, costs = ReadBackSource(claim=0.9, accuracy=0.0), line(0.1)
    auto = Auto([source], costs)
    first = AutoRun(auto, costs=costs)
    first.steps(300)
    source.accuracy = 1.0
    assert min(first.steps(600)[-20:]) >= 2 or sum(first.steps(20)) > 40
    first.end()
    assert sum(AutoRun(auto, first=9, costs=costs).steps(10)) > 20


def test_claims_are_scaled_to_the_rate_at_which_they_come_true():
    costs = line(0.05)
    honest = AutoRun(Auto([ReadBackSource(claim=0.3, accuracy=0.3)], costs), costs=costs)
    boasting = AutoRun(Auto([ReadBackSource(claim=0.9, accuracy=0.3)], costs), costs=costs)
    honest.steps(150)
    boasting.steps(150)
    assert np.mean(boasting.steps(60)) < 1.5 * np.mean(honest.steps(60)) + 0.5


def test_requests_are_judged_apart():
    class HalfRightSource(ReadBackSource):
        def propose(self, request, budget):
            self.accuracy = float(request.request_id % 2)
            return super().propose(request, budget)

    costs = line(0.3)
    decoding = AutoRun(Auto([HalfRightSource(claim=0.9)], costs), 2, costs=costs)
    decoding.steps(60)
    sizes = np.array([decoding.step() for _ in range(100)])
    assert sizes[:, 1].mean() > 2.0
    assert sizes[:, 0].mean() < 0.5


def test_a_text_that_begins_to_repeat_is_noticed_without_a_draft():
    costs = line(0.05)
    decoding = AutoRun(create("auto", SpeculatorOptions(step_costs=costs)), target=HashTarget(4096, 4096), costs=costs)
    unpredictable = decoding.steps(200)
    decoding.target = HashTarget(VOCAB, 1)
    repetitive = decoding.steps(150)
    assert np.mean(np.array(unpredictable[50:]) > 0) < 0.3
    assert sum(repetitive[80:]) > 100


@pytest.mark.parametrize(
    ("target", "per_row", "tokens_per_second"),
    [
        (HashTarget(4096, 4096), 0.08, 0.97),  # unpredictable: nearly nothing is lost
        (HashTarget(VOCAB, 1), 0.0, 8),
        (HashTarget(VOCAB, 1), 0.05, 4),
        (HashTarget(VOCAB, 1), 0.2, 2.3),
    ],
)
def test_repetitive_text_gains_what_its_nodes_cost_and_other_text_loses_nothing(target, per_row, tokens_per_second):
    costs = line(per_row)
    decoding = AutoRun(create("auto", SpeculatorOptions(step_costs=costs)), target=target, costs=costs)
    decoding.steps(200)
    seconds = sum(float(costs.seconds(1, [rows])[0]) for rows in decoding.rows)
    assert decoding.n_tokens / seconds > tokens_per_second


class PromptSource(ReadBackSource):
    """Needs the ids after prompt positions, too."""

    needs = Needs(node_top_k=4, prompt_top_k=4)


@pytest.mark.parametrize(("accuracy", "reads"), [(1.0, True), (0.0, False)])
def test_prompts_are_read_back_where_drafts_save_more_than_that_takes(accuracy, reads):
    costs = StepCosts(line(0.05).curves, prompt_row=0.002)
    auto = Auto([PromptSource(claim=0.9, accuracy=accuracy)], costs)
    request = Request(list(range(30)), SamplingParams(max_tokens=20))
    assert auto.needs_of(request).prompt_top_k == 4  # nothing is known yet, and the account holds it
    for number in range(12):
        decoding = AutoRun(auto, first=number, costs=costs)
        decoding.steps(20)
        decoding.end()
    assert (auto.needs_of(request).prompt_top_k > 0) == reads
    assert auto.needs.prompt_top_k == 4  # of the method: the server must be able to read so many


def test_sources_begin_after_a_send_and_observe_the_answers_after_the_prompt_then():
    quick, full = TextSource(claim=0.9, name="quick"), PromptSource(claim=0.9, name="full")
    auto = Auto([full, quick], line(0.01))
    auto._lane.trials.add(0.0, -1e9, 1.0)  # no trial begins
    first, second = make_request(1), make_request(2)
    for request in (first, second):
        auto.begin(request)
    assert auto.states[1].arm == TEXT
    assert full.live == set()
    ids = np.zeros((3, 4), np.int32)
    auto.observe(second, Outcome([9], EMPTY_TREE, n_read=3, prompt_top_ids=ids))
    auto.states[2].try_arm(ALL, 8, 0)
    auto.propose(second, 8)
    assert full.called("begin") == full.asked == []
    auto.settle((), (), 0.0)
    assert full.called("begin") == full.called("observe") == [2]
    auto.propose(first, 8)
    auto.propose(second, 8)
    assert full.asked == [2]
    for request in (first, second):
        auto.end(request)
    assert quick.live == full.live == set()


def test_a_drafter_drafts_ahead_only_after_drafts_of_all_sources():
    class DrafterSource(ReadBackSource):
        needs = Needs(node_top_k=4, drafter=True)

    auto, request = Auto([TextSource(claim=0.9, name="quick"), DrafterSource(claim=0.9)], FREE), make_request()
    auto.begin(request)
    for arm, n_all in ((TEXT, 4), (ALL, 0), (ALL, 4), (0, 4)):  # the first ones draft without it
        auto.states[0].arm, auto.states[0].has_begun_all, auto.states[0].scope.n_all = arm, True, n_all
        (draft,) = auto.propose_batch((request,), (8,))
        assert draft.drafts_next == (arm == ALL and n_all > 0)
        assert draft.rests == (arm == 0)


def test_factors_are_those_of_the_scope_until_a_stream_knows_better():
    auto, request = Auto([ReadBackSource()], FREE), make_request()
    auto.begin(request)
    state: StreamState = auto.states[0]
    state.arm = ALL
    for _ in range(100):
        state.scope.calibrations[ALL].add([1.0], [])
    state.set_factors()
    assert state.factors[0] < 0.05
    for _ in range(100):
        state.calibrations[ALL].add([1.0], [1.0])
    state.set_factors()
    assert state.factors[0] == pytest.approx(0.9, abs=0.1)
