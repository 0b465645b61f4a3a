"""Proof by enumeration: trees of independent draws, composed and verified, leave the target's distribution alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from msgspec import structs

from engine.composer import compose
from engine.drafter.trees.blocks import block_trees
from engine.drafter.trees.choice import DraftVocabulary
from engine.drafter.trees.growth import grow
from engine.drafter.trees.rounds import BlockAsk
from engine.protocol import Branch
from engine.sampling.history import History
from engine.sampling.keys import NoiseKey
from engine.sampling.params import SamplingParams
from engine.sampling.randomness import Randomness
from engine.tree import ROOT, TokenTree
from engine.verify.rules import Row, decide_rejection
from tests.support.draft_oracles import Path, grown
from tests.support.enumeration import EXACT, SETTINGS, VOCAB, Target, every_outcome, worst_error
from tests.support.reference_walks import walk

Streams = Callable[[NoiseKey], Randomness]
Draft = Callable[[Streams, SamplingParams, int], Branch | None]

TWO = DraftVocabulary.of(torch.tensor([0, 2]), VOCAB)
ADDED = torch.from_numpy(np.random.default_rng(5).normal(0.0, 1.5, (VOCAB, VOCAB))).float()


def model(path: Path) -> torch.Tensor:
    row = np.random.default_rng([3, *(token + 1 for token in path)]).normal(0.0, 1.2, VOCAB)
    return torch.from_numpy(row).float()


def level_by_level(streams: Streams, params: SamplingParams, n_nodes: int) -> Branch | None:
    return grown(grow(params, None, 4, 2, n_nodes, 2), model, streams)


def reduced(streams: Streams, params: SamplingParams, n_nodes: int) -> Branch | None:
    return grown(grow(params, None, 4, 2, n_nodes, 2), lambda path: model(path)[TWO.ids], streams, TWO)


def block(
    streams: Streams,
    params: SamplingParams,
    n_nodes: int,
    vocabulary: DraftVocabulary | None = None,
    conditional: bool = False,
    history: History | None = None,
) -> Branch | None:
    rows = torch.stack([model((1, 1)), model((2, 2))])
    columns = slice(None) if vocabulary is None else vocabulary.ids

    def condition(
        parents: torch.Tensor, sequences: torch.Tensor, depth: int, states: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return ADDED[parents][:, columns], None

    [branch] = block_trees(
        rows[None, :, columns],
        [BlockAsk(params, history, 1, 4, 2, n_nodes)],
        "drafter",
        vocabulary,
        condition if conditional else None,
        np.array([[0.8, 0.6]], np.float32),
        streams,
    )
    return branch


DRAFTS: dict[str, Draft] = {
    "level by level": level_by_level,
    "of a reduced vocabulary": reduced,
    "a block": block,
    "a block with a condition": lambda streams, params, n: block(streams, params, n, None, True),
    "a block of a reduced vocabulary with a condition": lambda streams, params, n: block(streams, params, n, TWO, True),
    "a chain with penalties": lambda streams, params, n: block(
        streams, structs.replace(params, frequency_penalty=0.7), n, None, True, History([1], [0])
    ),
}
IDS = ["T1", "T0.4", "top-k", "top-p", "top-1", "min-p and bias"]


class SharedNumbers:
    """Keyed streams as they are: whoever asks with the same key meets the same uniform numbers, one after the other.

    Of every number the interval is known that it lies in; each draw by it decides between parts of that interval.
    """

    def __init__(self, random: Randomness) -> None:
        self._random = random
        self._within: dict[tuple[NoiseKey, int], tuple[float, float]] = {}

    def __call__(self, key: NoiseKey) -> Randomness:
        return _Stream(self, key)

    def draw(self, number: tuple[NoiseKey, int], weights: Row) -> int:
        low, high = self._within.get(number, (0.0, 1.0))
        ends = np.cumsum(weights) / weights.sum()
        starts = np.concatenate(([0.0], ends[:-1]))
        parts = np.maximum(np.minimum(ends, high) - np.maximum(starts, low), 0.0)
        token = self._random.draw(parts)
        self._within[number] = max(starts[token], low), min(ends[token], high)
        return token


class _Stream:
    def __init__(self, numbers: SharedNumbers, key: NoiseKey) -> None:
        self._numbers, self._key, self._used = numbers, key, 0

    def accept(self, probability: float) -> bool:
        raise AssertionError("a drafter only draws")

    def draw(self, weights: Row) -> int:
        self._used += 1
        return self._numbers.draw((self._key, self._used), weights)


def error(draft: Draft, params: SamplingParams, n_nodes: int, budget: int, *others: Branch) -> float:
    return worst_error(Target(params), lambda random: composed(draft, params, n_nodes, budget, random, *others))


def composed(
    draft: Draft, params: SamplingParams, n_nodes: int, budget: int, random: Randomness, *others: Branch
) -> TokenTree:
    branch = draft(SharedNumbers(random), structs.replace(params, verification="rejection"), n_nodes)
    assert branch is not None
    assert branch.q is not None
    return compose([*others, branch], budget)


@pytest.mark.parametrize("params", SETTINGS, ids=IDS)
@pytest.mark.parametrize("name", DRAFTS)
def test_trees_of_draws_yield_the_autoregressive_distribution(name: str, params: SamplingParams) -> None:
    assert error(DRAFTS[name], params, 4, 4) < EXACT
    assert error(DRAFTS[name], params, 4, 3) < EXACT


@pytest.mark.parametrize("name", [*DRAFTS][:4])
@pytest.mark.parametrize("budget", [3, 6])
def test_so_do_they_beside_the_guesses_of_others(name: str, budget: int) -> None:
    assert error(DRAFTS[name], SETTINGS[0], 4, budget, Branch([0, 1], "pld")) < EXACT


@pytest.mark.parametrize("name", [*DRAFTS][:5])
@pytest.mark.parametrize("budget", [2, 3, 4, 5])
def test_a_stop_id_that_ends_a_branch_favours_no_token(name: str, budget: int) -> None:
    """What is left out below it makes room for other nodes, if the budget is short; the walk does not stop here."""
    assert error(DRAFTS[name], structs.replace(SETTINGS[0], stop_ids=(2,)), 5, budget) < EXACT


def test_a_shape_that_depends_on_the_draws_is_caught() -> None:
    """Siblings drawn twice are left out, as if a set of tokens had been drawn."""

    def without_repetitions(streams: Streams, params: SamplingParams, n_nodes: int) -> Branch | None:
        branch = level_by_level(streams, params, n_nodes)
        assert branch is not None
        assert branch.q is not None
        tokens, parents = [*branch.tokens], [*(branch.parents or ())]
        top = [i for i, token in enumerate(tokens) if parents[i] == ROOT and token not in tokens[:i]]
        return Branch([tokens[i] for i in top], "drafter", [ROOT] * len(top), q=branch.q[top])

    assert error(without_repetitions, SETTINGS[0], 4, 4) > 1e-3


@pytest.mark.parametrize("name", ["level by level", "a block", "a block with a condition"])
def test_siblings_are_accepted_more_often_than_one_draw(name: str) -> None:
    """A second draw is tested against what the first one's rejection left."""
    target, params = Target(SETTINGS[0]), SETTINGS[0]

    def first_accepted(n_nodes: int, budget: int) -> float:
        def step(random: Randomness) -> bool:
            tree = composed(DRAFTS[name], params, n_nodes, budget, random)
            p = target.table(tree)
            return bool(walk(tree, lambda node: decide_rejection(p[node + 1], tree, node, random))[0])

        return sum(weight for accepted, weight in every_outcome(step) if accepted)

    assert first_accepted(4, 4) > first_accepted(4, 1) + 0.005
