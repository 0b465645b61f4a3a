"""``auto``: the nodes that pay, and none where none do."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.composer import compose
from engine.errors import ConfigError, UnknownMethodError
from engine.protocol import BatchSpeculator, Branch, Needs
from engine.step_cost import StepCosts
from engine.tree import ROOT
from speculators.auto.config import AutoConfig
from speculators.auto.prices import Prices
from speculators.auto.sharing import share_out
from speculators.auto.sources import FIRST_DRAFTING
from speculators.auto.speculator import Auto
from speculators.draft_model.speculator import DraftModelConfig
from speculators.ngrams.pld import PromptLookup
from speculators.registry import SpeculatorOptions, create
from speculators.testing import HashTarget
from tests.support.auto_sources import FREE, TARGET, VOCAB, Decoding, Fixed, Source, first_draft, line, make_request

# -- sharing nodes out -----------------------------------------------------------------------------------------------


@st.composite
def step_costs(draw):
    made = {}
    for batch in draw(st.sets(st.integers(1, 6), min_size=1, max_size=3)):
        rows = sorted(draw(st.sets(st.integers(batch, 20), min_size=1, max_size=5)))
        steps = draw(st.lists(st.floats(0.0, 2e-3), min_size=len(rows), max_size=len(rows)))
        made[batch] = (tuple(rows), tuple((1e-3 + np.cumsum(steps)).tolist()))
    return StepCosts(made)


def shared_out(costs, reaches, batch, margin=0.01):
    """Nodes per draft, if drafts take what is assumed before the first and nothing is read back."""
    price = Prices(costs).of(batch, 0, sum(map(len, reaches)))
    return share_out(reaches, [False] * len(reaches), price, FIRST_DRAFTING * len(reaches), margin)


probabilities = st.lists(st.floats(1e-3, 1.0), max_size=4).map(lambda values: sorted(values, reverse=True))


@settings(max_examples=100)
@given(st.lists(probabilities, max_size=3), st.integers(0, 4), step_costs(), st.sampled_from([0.0, 0.01, 0.2]))
def test_no_other_way_to_share_out_gives_more_tokens_per_second(reaches, n_others, costs, margin):
    batch = max(len(reaches) + n_others, 1)

    def rate(counts):
        seconds = float(costs.seconds(batch, [batch + sum(counts)])[0])
        seconds += FIRST_DRAFTING * len(reaches) if sum(counts) else 0.0
        return (batch + sum(sum(reach[:n]) for reach, n in zip(reaches, counts, strict=True))) / seconds

    counts = shared_out(costs, reaches, batch, margin)
    assert len(counts) == len(reaches)
    assert all(0 <= n <= len(reach) for n, reach in zip(counts, reaches, strict=True))
    best = max(map(rate, itertools.product(*(range(len(reach) + 1) for reach in reaches))))
    nothing = rate([0] * len(reaches))
    if sum(counts):
        assert math.isclose(rate(counts), best, rel_tol=1e-9)
        assert best >= nothing * (1.0 + margin) * (1.0 - 1e-9)
    else:
        assert best <= nothing * (1.0 + margin) * (1.0 + 1e-9)


@given(st.lists(probabilities, max_size=3), step_costs())
def test_the_most_probable_nodes_of_all_requests_come_first(reaches, costs):
    counts = shared_out(costs, reaches, max(len(reaches), 1))
    taken = [p for reach, n in zip(reaches, counts, strict=True) for p in reach[:n]]
    left = [p for reach, n in zip(reaches, counts, strict=True) for p in reach[n:]]
    assert min(taken, default=1.0) >= max(left, default=0.0)


@given(st.lists(probabilities, max_size=3))
def test_free_nodes_are_all_taken_and_dear_ones_never(reaches):
    batch = max(len(reaches), 1)
    assert shared_out(line(1.01), reaches, 1) == [0] * len(reaches)
    pays = sum(map(sum, reaches)) > 0.01 * batch + 1e-2  # the margin, and drafting
    if pays:
        assert shared_out(FREE, reaches, batch) == [len(reach) for reach in reaches]


def test_the_margin_is_what_a_draft_must_promise_more():
    costs = line(0.1)  # one node of 0.2: 1.2 tokens in 1.1002 s, that is 9.07 per cent more
    for margin, count in ((0.0, 1), (0.09, 1), (0.092, 0), (0.5, 0)):
        assert shared_out(costs, [[0.2]], 1, margin) == [count]


def test_requests_without_a_draft_make_a_step_worth_less_to_the_others():
    costs = StepCosts({1: ((1, 9), (1.0, 1.8)), 8: ((8, 16), (1.0, 1.8))})  # 0.1 s a node, on top of 1 s
    assert shared_out(costs, [[0.3, 0.2]], 1) == [2]
    assert shared_out(costs, [[0.3, 0.2]], 8) == [0]  # 8.3 tokens in 1.1 s, instead of 8 in 1 s


# -- drafts ----------------------------------------------------------------------------------------------------------


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
        paths = []
        for token, parent, score in zip(branch.tokens, branch.parents, branch.scores, strict=True):
            paths.append((*(() if parent == ROOT else paths[parent]), token))
            scores[paths[-1]] = max(scores.get(paths[-1], 0.0), score)
    return {path: math.prod(scores[path[:end]] for end in range(1, len(path) + 1)) for path in scores}


def paths_of(branches):
    tree = compose(branches, 10**6)
    return [tuple(tree.tokens[i] for i in tree.path(node)) for node in range(len(tree))]


@given(proposals("a"), proposals("b"), st.integers(0, 12), st.sampled_from([None, FREE, line(0.1), line(0.4)]))
def test_a_draft_is_the_best_part_of_what_was_proposed(one, other, budget, costs):
    given_branches = [branch for branch in (one, other) if branch is not None]
    auto = Auto([Fixed([branch] if branch else []) for branch in (one, other)], costs)
    request = make_request()
    auto.begin(request)
    drafts = auto.propose(request, budget)
    taken = paths_of(drafts)
    assert sum(len(branch.tokens) for branch in drafts) == len(taken) <= budget
    reach = reach_by_path(given_branches)
    assert set(taken) <= set(reach)
    assert all(len(path) == 1 or path[:-1] in taken[:i] for i, path in enumerate(taken))
    best = sorted(reach.values(), reverse=True)[:budget]
    assert sorted((reach[path] for path in taken), reverse=True) == pytest.approx(best[: len(taken)])
    assert len(taken) == (len(best) if costs is None else shared_out(costs, [best], 1)[0])
    for branch in drafts:
        assert [len(values) for values in (branch.parents, branch.scores)] == [len(branch.tokens)] * 2
        if branch.proposers is not None:
            assert [set(names) for names in branch.proposers] == [
                {b.source for b in given_branches if path in reach_by_path([b])} for path in taken
            ]


def test_budgets_of_nothing_draft_nothing_and_ask_no_part():
    source = Source()
    auto = Auto([source], FREE)
    decoding = Decoding(auto, 2)
    assert decoding.step(budget=0) == [0, 0]
    assert source.asked == []
    assert auto.propose_batch((), ()) == []
    drafts = auto.propose_batch(decoding.requests, [0, 3])
    assert [sum(len(branch.tokens) for branch in draft) for draft in drafts] == [0, 3]
    assert decoding.step() == [8, 8]  # no pause came of it


def test_a_source_without_estimates_is_believed_a_little():
    unsaid = Source(claim=None)
    assert 0 < first_draft(line(0.05), unsaid) < first_draft(line(0.05), Source(claim=0.9))
    assert first_draft(line(0.5), unsaid) == 0
    assert first_draft(None, unsaid) == 8


def drawn(tokens, name="drawn"):
    return Branch(tokens, name, q=np.full((len(tokens), VOCAB), 1 / VOCAB, np.float32))


@pytest.mark.parametrize("costs", [None, FREE], ids=["no costs", "free"])
def test_drawn_branches_and_probes_pass_untouched_where_nodes_are_free(costs):
    for special in (drawn([1, 2]), Branch([1, 2], "probing", probe=True)):
        rest = Branch([3, 4], "rest", scores=[0.9, 0.9])
        auto = Auto([Fixed([special]), Fixed([rest])], costs)
        request = make_request()
        auto.begin(request)
        for _ in range(5):
            drafts = auto.propose(request, 32)
            assert any(branch is special for branch in drafts)
            assert sum(len(branch.tokens) for branch in drafts) == 4
            outcome = TARGET.score(request.context.view.tolist(), compose(drafts, 32))
            request.context.extend(outcome.tokens)
            auto.observe(request, outcome)


@pytest.mark.parametrize("per_row", [0.05, 0.2, 0.3, 1.0])
def test_of_drawn_branches_a_first_part_is_kept_whatever_was_drawn(per_row):
    """How many draws count must not depend on them, or the test against ``q`` would not hold."""
    sizes = set()
    for tokens in ([1, 2, 3, 4, 5, 6], [9, 8, 7, 6, 5, 4], [3, 3, 3, 3, 3, 3]):
        auto = Auto([Fixed([drawn(tokens)])], line(per_row))
        request = make_request()
        auto.begin(request)
        drafts = auto.propose(request, 32)
        sizes.add(sum(len(branch.tokens) for branch in drafts))
        for branch in drafts:
            assert branch.tokens == tokens[: len(branch.tokens)]
            assert branch.q.shape == (len(branch.tokens), VOCAB)
            assert branch.scores is None
    assert len(sizes) == 1
    assert (sizes == {0}) == (per_row == 1.0)
    assert sizes != {6}


def test_a_drawn_branch_that_is_always_right_is_kept_longer_and_one_that_is_wrong_is_dropped():
    class Drawn(Source):
        def propose(self, request, budget):
            (branch,) = super().propose(request, budget)
            return [drawn(branch.tokens)]

    right, wrong = Decoding(Auto([Drawn()], line(0.2))), Decoding(Auto([Drawn(accuracy=0.0)], line(0.2)))
    good, bad = right.steps(60), wrong.steps(60)
    assert good[0] == bad[0]
    assert good[-1] > good[0]
    assert sum(bad[-20:]) <= 2  # it is tried again now and then


class Probing(Source):
    """Guesses nothing; probes eight branches of four nodes."""

    needs = Needs(probe_top_k=4)

    def propose(self, request, budget):
        self.asked.append(request.request_id)
        return [Branch([row, 1, 2, 3], self.name, probe=True) for row in range(8)]


@pytest.mark.parametrize(("per_row", "least", "most"), [(0.0, 32, 32), (0.04, 4, 8), (0.2, 0, 0), (100.0, 0, 0)])
def test_probes_are_kept_as_far_as_they_are_paid_for(per_row, least, most):
    """What they bring is taken for a third of a token a step at first."""
    (n,) = Decoding(Auto([Probing()], line(per_row))).step()
    assert least <= n <= most
    assert n % 4 == 0  # whole or not at all


@pytest.mark.parametrize("per_row", [0.002, 0.02, 0.5])
def test_probes_that_bring_nothing_are_given_up_and_tried_again_some_day(per_row):
    sizes = Decoding(Auto([Probing()], line(per_row))).steps(1500)
    assert sum(sizes[200:]) * per_row < 0.02 * 1300  # seconds, of steps that take one
    if per_row < 0.05:
        assert sizes[0] > 0
        assert any(sizes[200:])


def test_guesses_beside_probes_are_ranked_and_charged():
    guess = Branch([5, 6, 7, 8], "guess", scores=[0.9, 0.9, 0.1, 0.1])
    auto = Auto([Fixed([guess, *Probing().propose(make_request(), 32)], name="both")], line(0.3))
    request = make_request()
    auto.begin(request)
    assert [branch.tokens for branch in auto.propose(request, 64)] == [[5, 6]]


def test_drawn_branches_of_one_request_leave_the_others_to_their_estimates():
    class Mixed(Source):
        def propose(self, request, budget):
            if request.request_id % 2:
                return super().propose(request, budget)
            return [drawn([1, 2])]

    for claim, sizes in ((0.9, [1, 5, 1, 5]), (0.05, [1, 0, 1, 0])):
        decoding = Decoding(Auto([Mixed(claim, depth=5)], line(0.1)), 4)
        assert decoding.step() == sizes


def test_every_source_has_its_nodes_counted_as_its_own():
    auto = Auto([Source(name="a", depth=3), Source(name="b", accuracy=0.0, depth=2)], FREE)
    request = make_request()
    auto.begin(request)
    (branch,) = auto.propose(request, 32)
    assert sorted(branch.proposers) == [("a",)] * 3 + [("b",)] * 2
    tree = compose([branch], 32)
    assert {tree.source_names[source] for source in tree.sources} == {"a", "b"}


# -- state and failures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails_in", ["begin", "propose", "observe", "end"])
def test_a_part_that_fails_hurts_no_other_and_its_state_goes_as_well(fails_in):
    broken, sound = Source(name="broken", accuracy=0.0, fails_in={fails_in}), Source(name="sound", depth=3)
    auto = Auto([broken, sound], line(0.1))
    decoding = Decoding(auto, 3)
    for _ in range(5):
        assert min(decoding.step()) >= 3
    decoding.end()
    assert broken.live == sound.live == set()
    assert auto._requests == {}
    assert all(part._failed == set() for part in auto._sources.every)


@pytest.mark.parametrize("catches_up", [True, False])
def test_a_request_rests_in_the_steps_whose_outcome_its_sources_skip(catches_up):
    heard = []

    class Told(Source):
        needs = Needs(node_top_k=4)

        def observe(self, view, outcome):
            heard.append(outcome)

    Told.catches_up = catches_up
    auto = Auto([Told(claim=0.3, accuracy=0.0)], line(0.5))  # never pays: pauses grow
    request, rested = make_request(), 0
    auto.begin(request)
    for _ in range(40):
        draft = auto.propose(request, 32)
        tree = compose(draft, 32)
        rests, before = draft.decision is not None and not draft.decision.reads_back, len(heard)
        assert not (rests and len(tree))
        outcome = TARGET.score(request.context.view.tolist(), tree)
        request.context.extend(outcome.tokens)
        auto.observe(request, outcome)
        assert len(heard) == before + (not rests)
        rested += rests
    assert (rested > 10) == catches_up


def test_requests_begin_anew_after_their_end():
    source = Source(claim=0.3, accuracy=0.0)
    auto = Auto([source], line(0.5))
    first = Decoding(auto)
    first.steps(50)
    first.end()
    source.asked.clear()
    again = Decoding(auto)
    again.steps(1)
    assert source.asked == [0]  # no pause is left over
    again.end()
    again.end()  # a second time is harmless
    assert auto._requests == {}


def test_all_parts_hear_everything_and_needs_are_merged():
    class Wanting(Source):
        needs = Needs(node_top_k=4)

    auto = Auto([Wanting(), PromptLookup()])
    assert auto.needs == Needs(node_top_k=4)
    assert isinstance(auto, BatchSpeculator)
    assert auto.name == "auto"


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"longest_pause": 0}, "longest_pause must be at least 1, got 0"),
        ({"margin": -0.1}, r"margin must lie in \[0, 1\), got -0.1"),
        ({"margin": 1.0}, "margin"),
        ({"margin": float("nan")}, "margin"),
        ({"sources": ("pld", "auto")}, "sources cannot contain auto"),
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused(wrong, says):
    with pytest.raises(ConfigError, match=f"auto: .*{says}"):
        AutoConfig(**wrong)


def test_sources_are_the_named_ones():
    options = SpeculatorOptions(auto=AutoConfig(sources=("pld", "spectra-core")))
    auto = create("auto", options)
    assert [part.name for part in auto._sources.every] == ["pld", "spectra-core"]
    assert auto.needs == Needs(probe_top_k=32)
    assert [part.name for part in create("auto")._sources.every] == ["suffix+token-recycling"]
    with pytest.raises(UnknownMethodError, match="magic"):
        create("auto", SpeculatorOptions(auto=AutoConfig(sources=("magic",))))


def test_what_was_given_its_input_becomes_a_source():
    class Empty:
        pass

    options = SpeculatorOptions(draft_model=DraftModelConfig(path=None), retrieval=lambda: Empty())
    assert [part.name for part in create("auto", options)._sources.every] == [
        "suffix+token-recycling+spectra-retrieval",
    ]
    without = replace(options, auto=AutoConfig(retrieval=False))
    assert [part.name for part in create("auto", without)._sources.every] == ["suffix+token-recycling"]


@pytest.mark.parametrize("per_row", [None, 0.0, 0.1, 0.4])
@pytest.mark.parametrize("sources", [(), ("pld",), ("pld", "spectra-core", "lookahead")], ids=str)
def test_the_text_is_the_plain_one(decode, per_row, sources):
    costs = None if per_row is None else line(per_row)
    options = SpeculatorOptions(step_costs=costs, auto=AutoConfig(sources=sources))
    target = HashTarget(48, n_successors=2)
    tokens, n_steps = decode(create("auto", options), target, [3, 1, 4, 1, 5], 120)
    assert tokens == target.generate([3, 1, 4, 1, 5], 120)
    assert n_steps <= 119
