"""Proof by enumeration: the rejection rule emits exactly the target's autoregressive distribution, whatever is drafted.

The real rule runs on a vocabulary of three tokens (``tests.support.enumeration``). Rules and trees that are known to be
wrong must fail the same check.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.composer import compose
from engine.protocol import Branch
from engine.sampling.params import SamplingParams
from engine.sampling.randomness import Randomness
from engine.tree import ROOT, TokenTree
from engine.verify.rules import Decision, Row, decide_rejection, match
from tests.support.enumeration import (
    EXACT,
    SETTINGS,
    VOCAB,
    Drafter,
    Rule,
    Target,
    every_outcome,
    q_row,
    sampled_chain,
    sampled_tree,
    worst_error,
)
from tests.support.reference_walks import walk_greedy


def fixed(*branches: Branch, budget: int = 64) -> Drafter:
    return lambda random: compose(branches, budget)


def two_chains(random: Randomness) -> TokenTree:
    return compose([sampled_chain(random, 2), sampled_chain(random, 2)], 64)


def guess_then_chain(random: Randomness) -> TokenTree:
    return compose([Branch([0, 1], "pld"), sampled_chain(random, 2)], 64)


def chain_then_guess(random: Randomness) -> TokenTree:
    return compose([sampled_chain(random, 2), Branch([0, 1], "pld"), Branch([2], "pld")], 64)


def two_drafters(random: Randomness) -> TokenTree:
    return compose([sampled_chain(random, 2), sampled_chain(random, 2, "other", seed=7)], 64)


DRAFTERS: dict[str, Drafter] = {
    "nothing": fixed(),
    "one guess": fixed(Branch([1, 2], "pld")),
    "guesses that share a prefix": fixed(Branch([0, 1], "pld"), Branch([0, 2], "pld"), Branch([2], "pld")),
    "every token": fixed(*(Branch([token, 1], "pld") for token in range(VOCAB))),
    "one-hot duplicates": lambda random: TokenTree([1, 1, 0, 2, 2], [ROOT, ROOT, 0, 1, 1]),
    "guesses cut by the budget": fixed(Branch([0, 1, 2], "pld"), Branch([1, 1], "pld"), budget=4),
    "guesses over probes": fixed(Branch([0, 1], "pool", probe=True), Branch([0], "pld"), Branch([1], "pld")),
    "one sampled chain": lambda random: compose([sampled_chain(random, 3)], 64),
    "two sampled chains": two_chains,
    "a sampled tree": lambda random: compose([sampled_tree(random, 2, replace=True)], 64),
    "a tree sampled without replacement": lambda random: compose([sampled_tree(random, 2, replace=False)], 64),
    "a sampled tree cut by the budget": lambda random: compose([sampled_tree(random, 2, replace=True)], 3),
    "a guess, then draws": guess_then_chain,
    "draws, then a guess": chain_then_guess,
    "draws of two drafters": two_drafters,
}


@pytest.mark.parametrize("params", SETTINGS, ids=["T1", "T0.4", "top-k", "top-p", "top-1", "min-p and bias"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_every_tree_yields_the_autoregressive_distribution(name: str, params: SamplingParams) -> None:
    assert worst_error(Target(params), DRAFTERS[name]) < EXACT


@pytest.mark.parametrize(
    "name", [n for n, d in DRAFTERS.items() if n not in ("two sampled chains", "draws, then a guess")]
)
def test_greedy_walks_follow_the_argmax(name: str) -> None:
    target = Target(SamplingParams())
    for tree, _ in every_outcome(DRAFTERS[name]):
        _, tokens = walk_greedy(tree, target.table(tree))
        for i, token in enumerate(tokens):
            assert token == target.p(tuple(tokens[:i])).argmax()


# The composer decides where q survives; that decision must not depend on what was drawn.

_TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=2)
_PIECES = st.one_of(
    _TOKENS.map(lambda tokens: ("guess", tokens)),
    _TOKENS.map(lambda tokens: ("probe", tokens)),
    st.integers(1, 2).map(lambda depth: ("drafter", depth)),
    st.integers(1, 2).map(lambda depth: ("other", depth)),
)


def composed(pieces: Sequence[tuple[str, Any]], budget: int, random: Randomness) -> TokenTree:
    branches = []
    for kind, what in pieces:
        if kind in ("guess", "probe"):
            branches.append(Branch(what, kind, probe=kind == "probe"))
        else:
            branches.append(sampled_chain(random, what, kind, seed=99 if kind == "drafter" else 7))
    return compose(branches, budget)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(_PIECES, min_size=1, max_size=4), st.integers(1, 6))
def test_any_merged_and_pruned_tree_is_exact(pieces: list[tuple[str, Any]], budget: int) -> None:
    drawn = sum(what for kind, what in pieces if kind in ("drafter", "other"))
    if drawn <= 5:
        draft = partial(composed, pieces, budget)
        assert worst_error(Target(SETTINGS[0]), draft) < EXACT


@pytest.mark.parametrize(
    ("pieces", "budget"),
    [
        ([("probe", [0]), ("drafter", 1)], 6),  # the draw lands on the probe, or not
        ([("drafter", 1), ("probe", [0])], 6),
        ([("probe", [0]), ("drafter", 1)], 1),  # no room, except on the probe
        ([("drafter", 1), ("guess", [0])], 1),  # the guess fits only if it was drawn
        ([("probe", [0]), ("drafter", 1), ("guess", [1])], 2),  # room for the guess only if the draw hit the probe
        ([("drafter", 1), ("other", 1)], 1),
        ([("drafter", 1), ("drafter", 1), ("drafter", 1)], 2),
    ],
)
def test_value_dependent_traps_of_composition(pieces: list[tuple[str, Any]], budget: int) -> None:
    assert worst_error(Target(SETTINGS[0]), partial(composed, pieces, budget)) < EXACT


# Rules and trees that are known to be wrong: tests of the test.


def discard_and_redraw(p: Row, tree: TokenTree, node: int, random: Randomness) -> Decision:
    """REST: draw, accept on a match; otherwise throw the draw away and draw again."""
    token = random.draw(p)
    child = match(tree, node, token)
    return (child, token) if child is not None else (None, random.draw(p))


def bonus_from_p(p: Row, tree: TokenTree, node: int, random: Randomness) -> Decision:
    """Forgets the residual."""
    child, token = decide_rejection(p, tree, node, random)
    return (child, token) if child is not None else (None, random.draw(p))


def ignores_q(p: Row, tree: TokenTree, node: int, random: Randomness) -> Decision:
    """Accepts with p/q, but leaves the one-hot residual."""
    left = p.copy()
    for child in tree.children[node + 1]:
        token = tree.tokens[child]
        assert tree.q is not None
        if random.accept(min(1.0, float(left[token] / tree.q[child, token]))):
            return child, token
        left[token] = 0.0
        left /= left.sum()
    return None, random.draw(left)


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (discard_and_redraw, "one guess"),
        (discard_and_redraw, "one sampled chain"),
        (bonus_from_p, "one guess"),
        (bonus_from_p, "one sampled chain"),
        (ignores_q, "one sampled chain"),
    ],
)
def test_wrong_rules_are_caught(rule: Rule, name: str) -> None:
    assert worst_error(Target(SETTINGS[0]), DRAFTERS[name], rule) > 1e-3


def test_q_for_a_chosen_token_is_caught() -> None:
    """A token picked by rank was not drawn from q; a tree that claims so is not exact."""

    def by_rank(random: Randomness) -> TokenTree:
        row = q_row(())
        return TokenTree([int(row.argmax())], [ROOT], q=row[None])

    assert worst_error(Target(SETTINGS[0]), by_rank) > 1e-3
