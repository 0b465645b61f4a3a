"""Combinations: which nodes are chosen, by which estimates, and what is counted."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.errors import UnknownMethodError
from engine.protocol import Branch, Needs, Outcome
from engine.scheduling.stats import count_sources
from engine.tree import ROOT
from speculators.mixing.combined import CombinationConfig, Combined
from speculators.mixing.estimates import Estimates
from speculators.registry import create
from speculators.testing import AlwaysRight, AlwaysWrong, HashTarget
from tests.support.drafts import paths_of, steps, tokens_of, view


class Part:
    """Proposes the branches it was given, cut to the budget where they are chains of ``range``."""

    def __init__(self, name, branches=(), fails=False, needs=None):
        self.name, self.branches, self.fails = name, list(branches), fails
        self.needs = needs or Needs()
        self.budgets, self.outcomes = [], []

    def begin(self, request):
        pass

    def propose(self, request, budget):
        self.budgets.append(budget)
        if self.fails:
            raise RuntimeError("broken")
        return [Branch(b.tokens[:budget], self.name) if isinstance(b.tokens, range) else b for b in self.branches]

    def observe(self, request, outcome):
        self.outcomes.append(outcome)

    def end(self, request):
        pass


def begun(parts, request_id=0, **config):
    combined = Combined(parts, CombinationConfig(**config))
    request = view([1], request_id)
    combined.begin(request)
    return combined, request


@st.composite
def trees(draw, source):
    n = draw(st.integers(1, 6))
    edges = set()
    tokens, parents = [], []
    for i in range(n):
        parent = draw(st.integers(ROOT, i - 1))
        token = draw(st.integers(0, 3).filter(lambda t, p=parent: (p, t) not in edges) if i else st.integers(0, 3))
        edges.add((parent, token))
        tokens.append(token)
        parents.append(parent)
    scores = draw(st.none() | st.lists(st.floats(0.01, 1.0), min_size=n, max_size=n))
    return Branch(tokens, source, parents, scores=scores)


PARTS = st.tuples(*(st.lists(trees(name), max_size=3) for name in "abc"))


@given(PARTS, st.integers(0, 20))
def test_the_most_probable_nodes_of_all_parts_are_chosen(parts, budget):
    combined, request = begun([Part(name, branches) for name, branches in zip("abc", parts, strict=True)])
    estimates = Estimates()
    estimates.begin(0)
    score = {}  # path -> the best estimate of any proposer
    proposers = {}
    for branch in (branch for branches in parts for branch in branches):
        claims = branch.scores or [None] * len(branch.tokens)
        for path, claim in zip(paths_of([branch]), claims, strict=True):
            score[path] = max(score.get(path, 0.0), estimates.probability(0, branch.source, len(path), claim))
            proposers.setdefault(path, {})[branch.source] = None
    reach = {path: np.prod([score[path[: i + 1]] for i in range(len(path))]) for path in score}
    branches = combined.propose(request, budget)
    assert len(compose(branches, budget)) == len(tokens_of(branches)) == min(budget, len(score))
    assert len(branches) == (1 if score and budget else 0)
    for branch in branches:
        chosen = paths_of([branch])
        assert [reach[path] for path in chosen] == pytest.approx(sorted(reach.values(), reverse=True)[: len(chosen)])
        assert branch.scores == pytest.approx([score[path] for path in chosen])
        assert list(branch.proposers) == [tuple(proposers[path]) for path in chosen]


def test_a_batch_gets_what_each_request_would_get_alone():
    parts = [Part("a", [Branch([1, 2, 3], "a")]), Part("b", [Branch([1, 5], "b", scores=[0.9, 0.1])])]
    combined = Combined(parts)
    requests = [view([1], i) for i in range(3)]
    for request in requests:
        combined.begin(request)
    together = combined.propose_batch(requests, [2, 0, 9])
    assert together == [combined.propose(request, budget) for request, budget in zip(requests, [2, 0, 9], strict=True)]


@pytest.mark.parametrize(
    ("n_guesses", "n_probes", "share", "kept"),
    [  # of 16 nodes; a probe has four
        (40, 2, 0.25, (12, 4)),
        (40, 2, 0.0, (16, 0)),
        (40, 2, 1.0, (8, 8)),
        (2, 3, 0.25, (2, 12)),  # probes get what guesses leave
    ],
)
def test_probes_keep_their_share_of_the_budget(n_guesses, n_probes, share, kept):
    probes = [Branch([*range(i, i + 4)], "b", probe=True) for i in (100, 200, 300)[:n_probes]]
    combined, request = begun([Part("b", probes), Part("a", [Branch([*range(n_guesses)], "a")])], probe_share=share)
    tree = compose(combined.propose(request, 16), 16)
    assert (tree.probe.count(False), tree.probe.count(True)) == kept


@pytest.mark.parametrize(
    ("budget", "config", "tokens"),
    [
        (2, {}, [1, 7]),
        (3, {"weights": {"a": 2.0}}, [1, 2, 7]),
        (3, {"weights": {"b": 2.0}}, [7, 8, 1]),
        (9, {"weights": {"a": 0.0}}, [7, 8, 9]),
        (9, {"weights": {"a": 0.0, "b": 0.0}}, []),
        (9, {"limits": {"a": 1, "b": 0}}, [1]),
        (9, {"limits": {"a": 2, "b": 99}, "mode": "priority"}, [1, 2, 7, 8, 9]),
    ],
)
def test_weights_and_limits_choose_among_sources(budget, config, tokens):
    combined, request = begun([Part("a", [Branch(range(1, 4), "a")]), Part("b", [Branch(range(7, 10), "b")])], **config)
    assert tokens_of(combined.propose(request, budget)) == tokens


@pytest.mark.parametrize("weight", [1.0, 3.0, 1000.0])
def test_no_weight_puts_a_child_before_its_parent(weight):
    combined, request = begun([Part("a", [Branch([1, 2, 3], "a", scores=[0.5, 0.9, 1.0])])], weights={"a": weight})
    for budget in (1, 2, 3):
        (branch,) = combined.propose(request, budget)
        assert list(branch.tokens) == [1, 2, 3][:budget]
        assert all(0.0 < score <= 1.0 for score in branch.scores)


def test_draws_from_a_distribution_are_not_chosen_by_score():
    q = np.full((2, 9), 1 / 9, np.float32)
    first, drawn = Branch([1, 2], "a", scores=[0.1, 0.1]), Branch([5, 5], "b", q=q)
    combined, request = begun([Part("a", [first]), Part("b", [drawn])])
    branches = combined.propose(request, 3)
    assert [id(branch) for branch in branches] == [id(first), id(drawn)]
    assert compose(branches, 3).tokens == [1, 2, 5]


@pytest.mark.parametrize(
    ("chains", "budget", "sizes"),
    [
        ([range(40), range(50, 90), range(100, 140)], 30, [20, 5, 5]),
        ([range(1, 3), range(50, 90)], 32, [2, 30]),  # what an earlier part leaves passes on
        ([range(1, 4), range(1, 4), range(9, 40)], 12, [3, 3, 9]),  # shared nodes count once
    ],
)
def test_by_priority_parts_come_in_order_within_the_budget(chains, budget, sizes):
    parts = [Part(name, [Branch(chain, name)]) for name, chain in zip("abc", chains, strict=False)]
    combined, request = begun(parts, mode="priority")
    branches = combined.propose(request, budget)
    assert [branch.source for branch in branches] == [part.name for part in parts]
    assert [len(branch.tokens) for branch in branches] == sizes
    assert len(compose(branches, budget)) == min(budget, sum(map(len, chains)))


def test_a_failing_part_harms_no_other(caplog):
    parts = [Part("a", fails=True), Part("b", [Branch([2, 3], "b")])]
    combined, request = begun(parts)
    for _ in range(3):
        (branch,) = combined.propose(request, 4)
        assert branch.tokens == [2, 3]
        combined.observe(request, Outcome([2], compose([branch], 4), [0]))
    assert len(parts[0].budgets) == 1
    assert len(parts[1].outcomes) == 3
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


def test_parts_that_need_different_layers_cannot_be_combined():
    with pytest.raises(UnknownMethodError, match=r"a\+b"):
        Combined([Part("a", needs=Needs(hidden_layer=1)), Part("b", needs=Needs(hidden_layer=2))])


def test_first_all_and_sole_proposers_are_counted():
    """a: 1-2-3, b: 1-2 and 5, c: 5 and 1-9; the target writes 1 2 3, so only a is right about 3."""
    parts = [
        Part("a", [Branch([1, 2, 3], "a")]),
        Part("b", [Branch([1, 2], "b"), Branch([5], "b")]),
        Part("c", [Branch([5], "c"), Branch([1, 9], "c")]),
    ]
    combined, request = begun(parts)
    tree = compose(combined.propose(request, 10), 10)
    assert len(tree) == 5
    accepted = [tree.find([1]), tree.find([1, 2]), tree.find([1, 2, 3])]
    assert count_sources(tree, accepted) == {
        "a": (3, 3, 3, 3, 1),  # drafted, accepted, proposed, of these accepted, alone
        "b": (1, 0, 3, 2, 0),
        "c": (1, 0, 3, 1, 0),
    }


@pytest.mark.parametrize("method", ["always-wrong+always-right", "always-right+always-wrong"])
@pytest.mark.parametrize("budget", [4, 8])
def test_the_right_part_soon_gets_the_nodes(method, budget):
    target, prompt = HashTarget(40), [1, 2, 3]
    answers = {tuple(prompt): target.generate(prompt, 301)}
    kinds = {"always-right": AlwaysRight, "always-wrong": AlwaysWrong}
    extra = {name: lambda options, kind=kind: kind(answers, depth=4) for name, kind in kinds.items()}
    request = view(prompt, vocab_size=40)
    taken = [len(step.outcome.tokens) for step in steps(create(method, extra=extra), target, request, 280, budget)]
    assert request.context.view[3:].tolist()[:280] == target.generate(prompt, 280)
    assert sum(taken[-20:]) >= 0.9 * 20 * 5  # four accepted and the bonus token: all that always-right alone gets
