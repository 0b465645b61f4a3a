"""``auto``: the nodes that pay, and none where none do."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.errors import ConfigError, UnknownMethodError
from engine.protocol import BatchSpeculator, Branch, Needs
from engine.tree import ROOT
from speculators.auto.config import AutoConfig
from speculators.auto.speculator import Auto
from speculators.draft_model.config import DraftModelConfig
from speculators.ngrams.pld import PromptLookup
from speculators.registry import SpeculatorOptions, create
from speculators.testing import HashTarget
from tests.support.auto_sources import (
    FREE,
    TARGET,
    Decoding,
    Fixed,
    Source,
    first_draft,
    line,
    make_request,
    shared_out,
)

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
@pytest.mark.usefixtures("steady_clocks")
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


def test_sources_are_the_named_ones_and_what_a_request_predicts():
    options = SpeculatorOptions(auto=AutoConfig(sources=("pld", "spectra-core")))
    auto = create("auto", options)
    assert [part.name for part in auto._sources.every] == ["pld", "spectra-core", "prediction"]
    assert auto.needs == Needs(probe_top_k=32)
    assert [part.name for part in create("auto")._sources.every] == ["suffix+token-recycling", "pld", "prediction"]
    with pytest.raises(UnknownMethodError, match="magic"):
        create("auto", SpeculatorOptions(auto=AutoConfig(sources=("magic",))))


def test_what_was_given_its_input_becomes_a_source():
    class Empty:
        pass

    options = SpeculatorOptions(draft_model=DraftModelConfig(path=None), retrieval=lambda: Empty())
    assert [part.name for part in create("auto", options)._sources.every] == [
        "suffix+token-recycling+spectra-retrieval",
        "pld",
        "prediction",
    ]
    without = replace(options, auto=AutoConfig(retrieval=False))
    assert [part.name for part in create("auto", without)._sources.every] == [
        "suffix+token-recycling",
        "pld",
        "prediction",
    ]


@pytest.mark.parametrize("per_row", [None, 0.0, 0.1, 0.4])
@pytest.mark.parametrize("sources", [(), ("pld",), ("pld", "spectra-core", "lookahead")], ids=str)
def test_the_text_is_the_plain_one(decode, per_row, sources):
    costs = None if per_row is None else line(per_row)
    options = SpeculatorOptions(step_costs=costs, auto=AutoConfig(sources=sources))
    target = HashTarget(48, n_successors=2)
    tokens, n_steps = decode(create("auto", options), target, [3, 1, 4, 1, 5], 120)
    assert tokens == target.generate([3, 1, 4, 1, 5], 120)
    assert n_steps <= 119
