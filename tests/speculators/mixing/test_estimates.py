"""Claims of parts are calibrated by accepted nodes, and nodes are counted as the composer merges them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.protocol import Branch, Outcome
from engine.tree import ROOT, TokenTree
from speculators.mixing.candidates import Candidates
from speculators.mixing.estimates import FIRST_CLAIM, Estimates, tried_nodes
from speculators.node_counter import NodeCounter


def tried(estimates, source, claim, hits, depth=1, request_id=0):
    """Let nodes at a depth be tried, below a path that is accepted."""
    for hit in hits:
        tokens = list(range(depth))
        tree = TokenTree(tokens, [i - 1 for i in range(depth)])
        claims = [{} for _ in range(depth - 1)] + [{source: claim}]
        outcome = Outcome([0], tree, range(depth if hit else depth - 1))
        estimates.observe(request_id, outcome, claims)


@pytest.mark.parametrize("claim", [0.3, 0.9])
def test_claims_are_calibrated_by_what_came_true(claim):
    estimates = Estimates()
    for request_id in (0, 1):
        estimates.begin(request_id)
    assert estimates.probability(0, "x", 1, claim) == pytest.approx(claim)
    tried(estimates, "liar", claim, [False] * 40)
    tried(estimates, "modest", claim, [True] * 40)
    tried(estimates, "honest", claim, [i % 10 < 10 * claim for i in range(200)])
    assert estimates.probability(0, "liar", 1, claim) == pytest.approx(0.25 * claim)
    assert estimates.probability(0, "modest", 1, claim) == pytest.approx(1.0, abs=0.15)
    assert estimates.probability(0, "honest", 1, claim) == pytest.approx(claim, rel=0.25)
    assert estimates.probability(0, "liar", 2, claim) == pytest.approx(claim), "other depths have shown nothing"
    assert estimates.probability(1, "liar", 1, claim) < 0.5 * claim, "a new request starts from what others showed"
    assert estimates.factor(0, ("liar", 1)) == 0.25
    assert estimates.factor(0, ("modest", 1)) > 1.0


def test_a_source_that_claims_nothing_is_worth_its_rate():
    estimates = Estimates()
    estimates.begin(0)
    assert estimates.probability(0, "x", 3, None) == pytest.approx(FIRST_CLAIM)
    tried(estimates, "right", None, [True] * 100, depth=3)
    tried(estimates, "wrong", None, [False] * 100, depth=3)
    tried(estimates, "half", None, [True, False] * 100, depth=9)
    assert estimates.probability(0, "right", 3, None) > 0.95
    assert estimates.probability(0, "wrong", 3, None) < 0.02
    assert estimates.probability(0, "half", 50, None) == pytest.approx(0.5, abs=0.1)


def test_a_requests_own_record_outweighs_the_others():
    estimates = Estimates()
    estimates.begin(0)
    estimates.begin(1)
    tried(estimates, "x", 0.5, [False] * 60, request_id=0)
    tried(estimates, "x", 0.5, [True] * 30, request_id=1)
    assert estimates.probability(0, "x", 1, 0.5) < 0.3 < 0.7 < estimates.probability(1, "x", 1, 0.5)


@given(st.lists(st.tuples(st.floats(1e-6, 1.0), st.booleans()), max_size=80), st.floats(0.0, 1.0))
def test_estimates_are_probabilities_whatever_was_claimed(history, claim):
    estimates = Estimates()
    estimates.begin(0)
    for claimed, hit in history:
        tried(estimates, "x", claimed, [hit])
        tried(estimates, "y", None, [hit])
    assert 0.0 < estimates.probability(0, "x", 1, claim) <= 1.0
    assert 0.0 < estimates.probability(0, "y", 1, None) <= 1.0
    assert 0.25 <= estimates.factor(0, ("x", 1)) <= 4.0


def test_tried_are_the_children_of_what_was_accepted_without_probes():
    tree = TokenTree([1, 2, 3, 4, 5, 6], [ROOT, ROOT, 0, 0, 1, ROOT], probe=[False] * 5 + [True])
    assert tried_nodes(tree, [0, 3]) == [0, 1, 2, 3]
    assert tried_nodes(tree, []) == [0, 1]


def test_claims_are_found_again_in_the_composed_tree():
    candidates = Candidates("x")
    candidates.add(Branch([1, 2], "a", scores=[0.5, 0.6]), lambda *_: 0.5, 0)
    candidates.add(Branch([1, 3], "b"), lambda *_: 0.5, 0)
    tree = compose([Branch([3], "c"), Branch([1, 3, 4], "c"), Branch([1, 2], "c")], 9)
    assert tree.tokens == [3, 1, 3, 4, 2]
    assert candidates.claims_of(tree) == [{}, {"a": 0.5, "b": None}, {"b": None}, {}, {"a": 0.6}]


CHAINS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=6)


@given(CHAINS, st.integers(0, 12))
def test_cut_chains_fill_the_limit_as_the_composer_fills_its_budget(chains: list[list[int]], limit: int) -> None:
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
def test_whole_chains_are_taken_as_the_composer_takes_probes(chains: list[list[int]], limit: int) -> None:
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
