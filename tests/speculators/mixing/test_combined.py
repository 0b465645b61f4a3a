"""Combinations: which nodes are chosen, by what estimates, and what is counted."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.errors import ConfigError
from engine.protocol import Branch, Needs, Outcome
from engine.scheduling.stats import count_sources
from engine.tree import EMPTY_TREE, ROOT
from speculators.mixing.combined import CombinationConfig, Combined
from speculators.mixing.estimates import Estimates
from speculators.registry import SpeculatorOptions, create
from speculators.testing import AlwaysRight, AlwaysWrong, HashTarget


class Part:
    """Proposes what it is given."""

    needs = Needs()

    def __init__(self, name, branches=(), fails=False):
        self.name, self.branches, self.fails = name, list(branches), fails
        self.budgets, self.outcomes = [], []

    def begin(self, request):
        pass

    def propose(self, request, budget):
        self.budgets.append(budget)
        if self.fails:
            raise RuntimeError("broken")
        return self.branches

    def observe(self, request, outcome):
        self.outcomes.append(outcome)

    def end(self, request):
        pass


def begun(parts, new_request, request_id=0, **config):
    combined = Combined(parts, CombinationConfig(**config))
    request = new_request([1], request_id)
    combined.begin(request)
    return combined, request


def paths_of(branch):
    paths = []
    parents = branch.above
    for token, parent in zip(branch.tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), token))
    return paths


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
    request = SimpleNamespace(request_id=0, request=SimpleNamespace(scope=""))
    combined = Combined([Part(name, branches) for name, branches in zip("abc", parts, strict=True)])
    combined.begin(request)
    estimates = Estimates()
    estimates.begin(0)
    score = {}  # path -> the best estimate of any proposer
    proposers = {}
    for branch in (branch for branches in parts for branch in branches):
        claims = branch.scores or [None] * len(branch.tokens)
        for path, claim in zip(paths_of(branch), claims, strict=True):
            score[path] = max(score.get(path, 0.0), estimates.probability(0, branch.source, len(path), claim))
            proposers.setdefault(path, {})[branch.source] = None
    reach = {path: np.prod([score[path[: i + 1]] for i in range(len(path))]) for path in score}
    branches = combined.propose(request, budget)
    assert len(compose(branches, budget)) == sum(len(branch.tokens) for branch in branches) <= budget
    chosen = [(path, i, branch) for branch in branches for i, path in enumerate(paths_of(branch))]
    assert len(branches) == (1 if score and budget else 0)
    assert len(chosen) == min(budget, len(score))
    found = [reach[path] for path, _, _ in chosen]
    assert found == pytest.approx(sorted(reach.values(), reverse=True)[: len(found)])
    for path, i, branch in chosen:
        assert branch.scores[i] == pytest.approx(score[path])
        assert branch.proposers[i] == tuple(proposers[path])
    combined.observe(request, Outcome([1], compose(branches, budget)))
    combined.end(request)
    assert (combined._drafted, combined._estimates._own) == ({}, {})


def test_a_batch_is_what_each_would_get_alone(new_request):
    parts = [Part("a", [Branch([1, 2, 3], "a")]), Part("b", [Branch([1, 5], "b", scores=[0.9, 0.1])])]
    combined = Combined(parts)
    requests = [new_request([1], i) for i in range(3)]
    for request in requests:
        combined.begin(request)
    together = combined.propose_batch(requests, [2, 0, 9])
    assert together == [combined.propose(request, budget) for request, budget in zip(requests, [2, 0, 9], strict=True)]


# Probes, limits, weights, q.


@pytest.mark.parametrize(
    ("share", "guesses", "probes"),
    [(0.25, 12, 4), (0.0, 16, 0), (0.5, 8, 8), (1.0, 8, 8)],  # two probes of four nodes; 16 in all
)
def test_probes_keep_their_share_of_the_budget(share, guesses, probes, new_request):
    lookahead = [Branch(range(i, i + 4), "b", probe=True) for i in (100, 200)]
    parts = [Part("a", [Branch(range(40), "a")]), Part("b", lookahead)]
    combined, request = begun(parts, new_request, probe_share=share)
    tree = compose(combined.propose(request, 16), 16)
    assert (tree.probe.count(False), tree.probe.count(True)) == (guesses, probes)


def test_what_guesses_leave_goes_to_probes(new_request):
    lookahead = [Branch(range(i, i + 4), "b", probe=True) for i in (100, 200, 300)]
    combined, request = begun([Part("b", lookahead), Part("a", [Branch([1, 2], "a")])], new_request)
    tree = compose(combined.propose(request, 16), 16)
    assert (tree.probe.count(False), tree.probe.count(True)) == (2, 12)


def test_limits_cap_what_a_part_is_asked_for(new_request):
    parts = [Part("a", [Branch([1], "a")]), Part("b", [Branch([2], "b")]), Part("c", [Branch([3], "c")])]
    combined, request = begun(parts, new_request, limits={"a": 3, "b": 0, "c": 99})
    (branch,) = combined.propose(request, 10)
    assert [part.budgets for part in parts] == [[3], [], [10]]
    assert branch.tokens == [1, 3]


def test_weights_prefer_a_source_and_zero_switches_it_off(new_request):
    parts = [Part("a", [Branch([1, 2, 3], "a")]), Part("b", [Branch([7, 8, 9], "b")])]

    def chosen(budget, **weights):
        combined, request = begun(parts, new_request, weights=weights)
        return [token for branch in combined.propose(request, budget) for token in branch.tokens]

    assert chosen(2) == [1, 7]
    assert chosen(3, a=2.0) == [1, 2, 7]
    assert chosen(3, b=2.0) == [7, 8, 1]
    assert chosen(9, a=0.0) == [7, 8, 9]
    assert chosen(9, a=0.0, b=0.0) == []


@pytest.mark.parametrize("weight", [1.0, 3.0, 1000.0])
def test_no_weight_makes_a_node_surer_than_sure(weight, new_request):
    """A child must never come before its parent."""
    parts = [Part("a", [Branch([1, 2, 3], "a", scores=[0.5, 0.9, 1.0])])]
    combined, request = begun(parts, new_request, weights={"a": weight})
    for budget in (1, 2, 3):
        (branch,) = combined.propose(request, budget)
        assert list(branch.tokens) == [1, 2, 3][:budget]
        assert all(0.0 < score <= 1.0 for score in branch.scores)


def test_draws_from_a_distribution_are_not_chosen_among(new_request):
    q = np.full((2, 9), 1 / 9, np.float32)
    first, drawn = Branch([1, 2], "a", scores=[0.1, 0.1]), Branch([5, 5], "b", q=q)
    combined, request = begun([Part("a", [first]), Part("b", [drawn])], new_request)
    branches = combined.propose(request, 3)
    assert [id(branch) for branch in branches] == [id(first), id(drawn)]
    tree = compose(branches, 3)
    combined.observe(request, Outcome([1], tree))
    assert tree.tokens == [1, 2, 5]


def test_in_order_mode_does_not_choose(new_request):
    parts = [Part("a", [Branch([1], "a", scores=[0.01])]), Part("b", [Branch([2], "b", scores=[0.99])])]
    combined, request = begun(parts, new_request, mode="priority")
    branches = combined.propose(request, 4)
    assert [branch.source for branch in branches] == ["a", "b"]
    assert compose(branches, 1).tokens == [1]


def test_a_failing_part_does_not_hurt_the_others(new_request, caplog):
    parts = [Part("a", fails=True), Part("b", [Branch([2, 3], "b")])]
    combined, request = begun(parts, new_request)
    for _ in range(3):
        (branch,) = combined.propose(request, 4)
        assert branch.tokens == [2, 3]
        combined.observe(request, Outcome([2], compose([branch], 4), [0]))
    assert len(parts[0].budgets) == 1
    assert len(parts[1].outcomes) == 3
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1


# Counting: who proposed a node first, and who alone.


def test_first_all_and_sole_proposers_are_counted(new_request):
    """a: 1-2-3, b: 1-2 and 5, c: 5 and 1-9; the target writes 1 2 3, so a is alone right about 3."""
    parts = [
        Part("a", [Branch([1, 2, 3], "a")]),
        Part("b", [Branch([1, 2], "b"), Branch([5], "b")]),
        Part("c", [Branch([5], "c"), Branch([1, 9], "c")]),
    ]
    combined, request = begun(parts, new_request)
    tree = compose(combined.propose(request, 10), 10)
    assert len(tree) == 5
    accepted = [tree.find([1]), tree.find([1, 2]), tree.find([1, 2, 3])]
    counts = count_sources(tree, accepted)
    assert counts["a"] == (3, 3, 3, 3, 1)  # drafted, accepted, proposed, of these accepted, alone
    assert counts["b"] == (1, 0, 3, 2, 0)
    assert counts["c"] == (1, 0, 3, 1, 0)
    assert set(counts) == {"a", "b", "c"}


def test_sources_within_a_part_are_told_apart(new_request):
    """The mixed model names its own halves; the combination keeps them."""
    mixed = Branch([1, 2], "x+y", scores=[0.5, 0.5], proposers=[("y", "x"), ("x",)])
    combined, request = begun([Part("x+y", [mixed]), Part("z", [Branch([1], "z")])], new_request)
    (branch,) = combined.propose(request, 5)
    assert branch.proposers == [("y", "x", "z"), ("x",)]
    counts = count_sources(compose([branch], 5), [0])
    assert counts == {"y": (1, 1, 1, 1, 0), "x": (1, 0, 2, 1, 0), "z": (0, 0, 1, 1, 0)}


# Together with real parts.


def known(target, prompt, n):
    answers = {tuple(prompt): target.generate(prompt, n)}
    return {
        "always-right": lambda options: AlwaysRight(answers, depth=4),
        "always-wrong": lambda options: AlwaysWrong(answers, depth=4),
    }


@pytest.mark.parametrize("method", ["always-wrong+always-right", "always-right+always-wrong"])
@pytest.mark.parametrize("budget", [4, 5, 8])
def test_the_right_part_soon_gets_the_nodes(method, budget, decode_steps, new_request):
    target, prompt = HashTarget(40), [1, 2, 3]
    speculator = create(method, extra=known(target, prompt, 301))
    request = new_request(prompt, vocab_size=40)
    taken = [len(step.outcome.tokens) for step in decode_steps(speculator, target, request, 280, budget)]
    assert request.context.view[3:].tolist()[:280] == target.generate(prompt, 280)
    assert sum(taken[-20:]) >= 0.9 * 20 * 5  # four accepted and the bonus token: all that always-right alone gets


@pytest.mark.parametrize("mode", ["score", "priority"])
@pytest.mark.parametrize("budget", [1, 9, 64])
def test_everything_together_writes_the_plain_text(mode, budget, decode):
    options = SpeculatorOptions(combination=CombinationConfig(mode=mode))
    method = "suffix+token-recycling+spectra-core+lookahead+pld+anpd"
    target, prompt = HashTarget(48, n_successors=2), [3, 1, 4, 1, 5]
    tokens, n_steps = decode(create(method, options), target, prompt, 120, budget)
    assert tokens == target.generate(prompt, 120)
    assert n_steps < 119


def test_a_step_without_a_draft_teaches_nothing(new_request):
    combined, request = begun([Part("a")], new_request)
    assert combined.propose(request, 5) == []
    combined.observe(request, Outcome([1], EMPTY_TREE))
    combined.observe(request, Outcome([1], EMPTY_TREE))  # without having been asked
    assert combined._estimates._shared[""].tried == {}


@pytest.mark.parametrize(
    "bad", [{"mode": "best"}, {"probe_share": 1.5}, {"weights": {"a": -1.0}}, {"limits": {"pld": -1}}]
)
def test_wrong_settings_are_named(bad):
    with pytest.raises(ConfigError, match=r"combination: .* must "):
        CombinationConfig(**bad)
