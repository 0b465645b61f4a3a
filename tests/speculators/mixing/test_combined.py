"""Combinations: which nodes they choose, how estimates are calibrated, and how nodes are counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.errors import UnknownMethodError
from engine.protocol import Branch, Needs, Outcome
from engine.tree import ROOT, TokenTree
from speculators.mixing.combined import CombinationConfig, Combined
from speculators.mixing.estimates import FIRST_CLAIM, AcceptanceSums, SourceEstimates, tried_nodes
from speculators.mixing.merged import MergedDrafts
from speculators.node_counter import NodeCounter
from speculators.registry import create
from speculators.testing import AlwaysRight, AlwaysWrong, HashTarget
from tests.speculators.drafts import Scripted, paths_of, steps, tokens_of, view


def begun(*parts, **config):
    combined, request = Combined(parts, CombinationConfig(**config)), view([1])
    combined.begin(request)
    return combined, request


@st.composite
def trees(draw, source):
    n = draw(st.integers(1, 6))
    tokens, parents = [], []
    for i in range(n):
        parents.append(draw(st.integers(ROOT, i - 1)))
        siblings = [token for token, parent in zip(tokens, parents, strict=False) if parent == parents[i]]
        tokens.append(draw(st.integers(0, 5).filter(lambda token, taken=siblings: token not in taken)))
    scores = draw(st.none() | st.lists(st.floats(0.01, 1.0), min_size=n, max_size=n))
    return Branch(tokens, source, parents, scores=scores)


PARTS = st.tuples(*(st.lists(trees(name), max_size=3) for name in "abc"))


@given(PARTS, st.integers(0, 20))
def test_the_most_probable_nodes_of_all_parts_are_chosen(parts, budget):
    combined, request = begun(*map(Scripted, "abc", parts))
    probability = SourceEstimates(AcceptanceSums()).of_step()
    score = {}  # path -> the best estimate of any proposer
    proposers = {}
    for branch in (branch for branches in parts for branch in branches):
        claims = branch.scores or [None] * len(branch.tokens)
        for path, claim in zip(paths_of([branch]), claims, strict=True):
            score[path] = max(score.get(path, 0.0), probability(branch.source, len(path), claim))
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


def test_a_batch_gets_the_drafts_of_single_requests():
    parts = [Scripted("a", [Branch([1, 2, 3], "a")]), Scripted("b", [Branch([1, 5], "b", scores=[0.9, 0.1])])]
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
    guessing = Scripted("a", [Branch([*range(n_guesses)], "a")])
    combined, request = begun(Scripted("b", probes), guessing, probe_share=share)
    tree = compose(combined.propose(request, 16), 16)
    assert (tree.probe.count(False), tree.probe.count(True)) == kept


def test_sampled_drafts_keep_their_order():
    q = np.full((2, 9), 1 / 9, np.float32)
    first, drawn = Branch([1, 2], "a", scores=[0.1, 0.1]), Branch([5, 5], "b", q=q)
    combined, request = begun(Scripted("a", [first]), Scripted("b", [drawn]))
    branches = combined.propose(request, 3)
    assert [id(branch) for branch in branches] == [id(first), id(drawn)]
    assert compose(branches, 3).tokens == [1, 2, 5]


def test_parts_that_need_different_layers_cannot_be_combined():
    with pytest.raises(UnknownMethodError, match=r"a\+b"):
        Combined([Scripted("a", needs=Needs(hidden_layer=1)), Scripted("b", needs=Needs(hidden_layer=2))])


@pytest.mark.parametrize("method", ["always-wrong+always-right", "always-right+always-wrong"])
@pytest.mark.parametrize("budget", [4, 8])
def test_the_correct_part_soon_gets_the_nodes(method, budget):
    target, prompt = HashTarget(40), [1, 2, 3]
    answers = {tuple(prompt): target.generate(prompt, 301)}
    kinds = {"always-right": AlwaysRight, "always-wrong": AlwaysWrong}
    extra = {name: lambda options, kind=kind: kind(answers, depth=4) for name, kind in kinds.items()}
    request = view(prompt, vocab_size=40)
    taken = [len(step.outcome.tokens) for step in steps(create(method, extra=extra), target, request, 280, budget)]
    assert request.context.view[3:].tolist()[:280] == target.generate(prompt, 280)
    assert sum(taken[-20:]) >= 0.9 * 20 * 5  # four accepted and the bonus token: all that always-right alone gets


def observe_tried(estimates, source, claim, hits, depth=1):
    """Observe trees in which a node at a depth was tried, below a path that was accepted."""
    for hit in hits:
        tree = TokenTree([*range(depth)], [*range(ROOT, depth - 1)])
        claims = [*({} for _ in range(depth - 1)), {source: claim}]
        estimates.observe(Outcome([0], tree, range(depth if hit else depth - 1)), claims)


@pytest.mark.parametrize("claim", [0.3, 0.9])
def test_accepted_nodes_calibrate_claims(claim):
    shared = AcceptanceSums()
    estimates, of_new_request = SourceEstimates(shared), SourceEstimates(shared)
    assert estimates.of_step()("x", 1, claim) == pytest.approx(claim)
    observe_tried(estimates, "too high", claim, [False] * 40)
    observe_tried(estimates, "too low", claim, [True] * 40)
    observe_tried(estimates, "correct", claim, [i % 10 < 10 * claim for i in range(200)])
    probability = estimates.of_step()
    assert probability("too high", 1, claim) == pytest.approx(0.25 * claim)
    assert probability("too low", 1, claim) == pytest.approx(1.0, abs=0.15)
    assert probability("correct", 1, claim) == pytest.approx(claim, rel=0.25)
    assert probability("too high", 2, claim) == pytest.approx(claim), "other depths are not affected"
    assert of_new_request.of_step()("too high", 1, claim) < 0.5 * claim, "new requests start from shared counts"
    observe_tried(of_new_request, "too high", claim, [True] * 40)
    assert of_new_request.of_step()("too high", 1, claim) > 0.8 * claim, "a request's own counts weigh more"
    assert estimates.factor("too high", 1) < 1.0 < estimates.factor("too low", 1)


def test_a_source_without_claims_gets_its_rate_of_hits():
    estimates = SourceEstimates(AcceptanceSums())
    assert estimates.of_step()("x", 3, None) == pytest.approx(FIRST_CLAIM)
    observe_tried(estimates, "right", None, [True] * 100, depth=3)
    observe_tried(estimates, "wrong", None, [False] * 100, depth=3)
    observe_tried(estimates, "half", None, [True, False] * 100, depth=9)
    probability = estimates.of_step()
    assert probability("right", 3, None) > 0.95
    assert probability("wrong", 3, None) < 0.02
    assert probability("half", 50, None) == pytest.approx(0.5, abs=0.1)


@given(st.lists(st.tuples(st.floats(1e-6, 1.0), st.booleans()), max_size=80), st.floats(0.0, 1.0))
def test_estimates_are_probabilities_for_any_claims(history, claim):
    estimates = SourceEstimates(AcceptanceSums())
    for claimed, hit in history:
        observe_tried(estimates, "x", claimed, [hit])
        observe_tried(estimates, "y", None, [hit])
    assert 0.0 < estimates.of_step()("x", 1, claim) <= 1.0
    assert 0.0 < estimates.of_step()("y", 1, None) <= 1.0
    assert 0.25 <= estimates.factor("x", 1) <= 4.0


def test_tried_nodes_are_the_children_of_accepted_nodes_without_probes():
    tree = TokenTree([1, 2, 3, 4, 5, 6], [ROOT, ROOT, 0, 0, 1, ROOT], probe=[False] * 5 + [True])
    assert tried_nodes(tree, [0, 3]) == [0, 1, 2, 3]
    assert tried_nodes(tree, []) == [0, 1]


def test_claims_of_a_composed_tree():
    drafts = MergedDrafts("x")
    drafts.add(Branch([1, 2], "a", scores=[0.5, 0.6]), lambda *_: 0.5)
    drafts.add(Branch([1, 3], "b"), lambda *_: 0.5)
    tree = compose([Branch([3], "c"), Branch([1, 3, 4], "c"), Branch([1, 2], "c")], 9)
    assert tree.tokens == [3, 1, 3, 4, 2]
    assert drafts.claims_of(tree) == [{}, {"a": 0.5, "b": None}, {"b": None}, {}, {"a": 0.6}]


CHAINS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=6)


@given(CHAINS, st.integers(0, 12))
def test_cut_chains_are_counted_as_the_composer_fills_its_budget(chains: list[list[int]], limit: int) -> None:
    counter, whole = NodeCounter(), NodeCounter()
    fits = [counter.add(chain, limit) for chain in chains]
    tree = compose([Branch(chain, "x") for chain in chains], limit)
    assert counter.n_nodes == len(tree)
    for chain, n in zip(chains, fits, strict=True):
        assert n == 0 or tree.find(chain[:n]) is not None
        assert n == len(chain) or tree.find(chain[: n + 1]) is None
        whole.add_branch(Branch(chain, "x"))
    assert whole.n_nodes == len(compose([Branch(chain, "x") for chain in chains], 100))


@given(CHAINS, st.integers(0, 12))
def test_whole_chains_are_counted_as_the_composer_adds_probes(chains: list[list[int]], limit: int) -> None:
    counter = NodeCounter()
    taken = [counter.add_whole(chain, limit) for chain in chains]
    tree = compose([Branch(chain, "x", probe=True) for chain in chains], limit)
    assert counter.n_nodes == len(tree)
    assert [tree.find(chain) is not None for chain in chains] == taken


def test_a_tree_branch_counts_its_nodes_once() -> None:
    counter = NodeCounter()
    counter.add_branch(Branch([1, 2, 3, 2], "x", parents=[-1, 0, 0, 0]))
    counter.add_branch(Branch([1, 3, 9], "x"))
    assert counter.n_nodes == 4
