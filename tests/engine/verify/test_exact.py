"""Proof by enumeration: the rejection rule emits exactly the target's autoregressive distribution, whatever is drafted.

Rules and trees that are known to be wrong must fail the same check.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs
from transformers import LlamaConfig, LlamaForCausalLM

from engine.composer import compose
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.protocol import Branch, RequestView
from engine.request import Request
from engine.sampling.noise import Randomness
from engine.sampling.params import SamplingParams
from engine.target_model.info import TargetInfo
from engine.tree import ROOT, TokenTree
from engine.verify.rules import Decision, Row, decide_rejection, match
from speculators.draft_model.config import DraftModelConfig
from speculators.draft_model.runner import DraftModelRunner
from speculators.draft_model.speculator import DraftModel
from speculators.mixing.combined import Combined
from speculators.successors.config import SuccessorConfig
from speculators.successors.speculator import Successors
from tests.support.enumeration import (
    EXACT,
    SETTINGS,
    VOCAB,
    Drafter,
    Rule,
    ThreeTokenTarget,
    q_row,
    sampled_chain,
    sampled_tree,
    worst_error,
)


def fixed(*branches: Branch, budget: int = 64) -> Drafter:
    return lambda random: compose(branches, budget)


DRAFTERS: dict[str, Drafter] = {
    "nothing": fixed(),
    "one guess": fixed(Branch([1, 2], "pld")),
    "guesses that share a prefix": fixed(Branch([0, 1], "pld"), Branch([0, 2], "pld"), Branch([2], "pld")),
    "every token": fixed(*(Branch([token, 1], "pld") for token in range(VOCAB))),
    "one-hot duplicates": lambda random: TokenTree([1, 1, 0, 2, 2], [ROOT, ROOT, 0, 1, 1]),
    "guesses cut by the budget": fixed(Branch([0, 1, 2], "pld"), Branch([1, 1], "pld"), budget=4),
    "guesses over probes": fixed(Branch([0, 1], "pool", probe=True), Branch([0], "pld"), Branch([1], "pld")),
    "one sampled chain": lambda random: compose([sampled_chain(random, 3)], 64),
    "two sampled chains": lambda random: compose([sampled_chain(random, 2), sampled_chain(random, 2)], 64),
    "a sampled tree": lambda random: compose([sampled_tree(random, 2, replace=True)], 64),
    "a tree sampled without replacement": lambda random: compose([sampled_tree(random, 2, replace=False)], 64),
    "a sampled tree cut by the budget": lambda random: compose([sampled_tree(random, 2, replace=True)], 3),
    "a guess, then draws": lambda random: compose([Branch([0, 1], "pld"), sampled_chain(random, 2)], 64),
    "draws, then a guess": lambda random: compose(
        [sampled_chain(random, 2), Branch([0, 1], "pld"), Branch([2], "pld")], 64
    ),
    "draws of two drafters": lambda random: compose(
        [sampled_chain(random, 2), sampled_chain(random, 2, "other", seed=7)], 64
    ),
}


# Every tree with two settings, every setting with five trees.
CELLS = [(name, SETTINGS[(i + turn) % 6]) for turn in (0, 3) for i, name in enumerate(DRAFTERS)]


@pytest.mark.parametrize(("name", "params"), CELLS)
def test_every_tree_yields_the_autoregressive_distribution(name: str, params: SamplingParams) -> None:
    assert worst_error(ThreeTokenTarget(params), DRAFTERS[name]) < EXACT


# Where q survives composition must not depend on the drawn tokens.

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


@given(st.lists(_PIECES, min_size=1, max_size=4), st.integers(1, 6))
@example([("probe", [0]), ("drafter", 1)], 6)  # the draw lands on the probe, or not
@example([("drafter", 1), ("probe", [0])], 6)
@example([("probe", [0]), ("drafter", 1)], 1)  # no room, except on the probe
@example([("drafter", 1), ("guess", [0])], 1)  # the guess fits only if it was drawn
@example([("probe", [0]), ("drafter", 1), ("guess", [1])], 2)  # room for the guess only if the draw hit the probe
@example([("drafter", 1), ("other", 1)], 1)
@example([("drafter", 1), ("drafter", 1), ("drafter", 1)], 2)
def test_any_merged_and_pruned_tree_is_exact(pieces: list[tuple[str, Any]], budget: int) -> None:
    drawn = sum(what for kind, what in pieces if kind in ("drafter", "other"))
    if drawn <= 5:
        assert worst_error(ThreeTokenTarget(SETTINGS[0]), partial(composed, pieces, budget)) < EXACT


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


def by_rank(random: Randomness) -> TokenTree:
    """Claims that a token picked by rank was drawn from q."""
    row = q_row(())
    return TokenTree([int(row.argmax())], [ROOT], q=row[None])


@pytest.mark.parametrize(
    ("rule", "draft"),
    [
        (discard_and_redraw, DRAFTERS["one guess"]),
        (bonus_from_p, DRAFTERS["one guess"]),
        (bonus_from_p, DRAFTERS["one sampled chain"]),
        (ignores_q, DRAFTERS["one sampled chain"]),
        (decide_rejection, by_rank),
    ],
)
def test_wrong_rules_and_trees_are_detected(rule: Rule, draft: Drafter) -> None:
    assert worst_error(ThreeTokenTarget(SETTINGS[0]), draft, rule) > 1e-3


class Rejecting:
    """Rejects whatever can be rejected; draws the last possible token."""

    def accept(self, probability: float) -> bool:
        return probability >= 1.0

    def draw(self, weights: Row) -> int:
        assert np.isfinite(weights).all()
        assert weights.sum() > 0.0
        return int(np.flatnonzero(weights)[-1])


P_ROWS = [[1.0, 0.0, 0.0], [1e-300, 1.0, 0.0], [0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3], [7.0, 0, 1.0]]
Q_ROWS = [None, [1.0, 0, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3], [0, 0, 1.0], [1e-30, 1.0, 0]]


def test_a_token_of_probability_zero_is_never_emitted() -> None:
    for p, q, tokens in itertools.product(P_ROWS, Q_ROWS, itertools.product(range(VOCAB), repeat=3)):
        rows = None if q is None else np.tile(np.array(q, dtype=np.float32), (3, 1))
        tree = TokenTree(tokens, [ROOT] * 3, q=rows)
        row = np.array(p)
        child, token = decide_rejection(row, tree, ROOT, Rejecting())
        assert row[token] > 0.0
        assert child is None or tree.tokens[child] == token
        assert row.tolist() == p, "the caller's row is unchanged"


@cache
def small_model() -> DraftModelRunner:
    """A draft model with weights over the same three tokens."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        initializer_range=0.7, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).float()
    spec = read_spec(model.config)
    return DraftModelRunner(ModelShard(model, spec, split_layers(1, 1)[0], 64), TargetInfo(spec, 16, 4, 32))


def speculated(random: Randomness, params: SamplingParams, order: str, budget: int) -> TokenTree:
    """The draft of a model and of successors after a text that repeats itself."""
    model = DraftModel(DraftModelConfig(draft_tokens=2), small_model(), lambda key: random)
    successors = Successors(SuccessorConfig(), ("suffix", "token-recycling"))
    parts = {"model": [model], "model first": [model, successors], "successors first": [successors, model]}[order]
    speculator = Combined(parts) if len(parts) > 1 else model
    params = structs.replace(params, verification="rejection")
    request = RequestView.of(0, Request([1, 0, 2, 1, 0, 1], params), VOCAB)
    speculator.begin(request)
    branches = speculator.propose(request, budget)
    speculator.end(request)
    assert any(branch.q is not None for branch in branches)
    assert any(branch.source == successors.name for branch in branches) == (len(parts) > 1)
    return compose(branches, budget)


@pytest.mark.parametrize(
    ("params", "order", "budget"),
    [
        *((params, "model", 8) for params in SETTINGS),
        (SETTINGS[0], "model first", 3),
        (SETTINGS[2], "successors first", 8),
        (SETTINGS[4], "model first", 8),
        (SETTINGS[0], "successors first", 3),
    ],
)
def test_drafts_of_speculators_yield_the_autoregressive_distribution(
    params: SamplingParams, order: str, budget: int
) -> None:
    assert worst_error(ThreeTokenTarget(params), lambda random: speculated(random, params, order, budget)) < EXACT
