"""What parts claim is calibrated by what came true."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.protocol import Branch, Outcome
from engine.tree import ROOT, TokenTree
from speculators.mixing.candidates import Candidates
from speculators.mixing.estimates import FIRST_CLAIM, Estimates, tried_nodes

# Estimates.


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


def test_a_requests_own_showing_outweighs_the_others():
    estimates = Estimates()
    estimates.begin(0)
    estimates.begin(1)
    tried(estimates, "x", 0.5, [False] * 60, request_id=0)
    tried(estimates, "x", 0.5, [True] * 30, request_id=1)
    assert estimates.probability(0, "x", 1, 0.5) < 0.3 < 0.7 < estimates.probability(1, "x", 1, 0.5)
    estimates.end(0)
    estimates.end(0)
    assert set(estimates._own) == {1}


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
