"""Proof by enumeration: trees of independent draws, composed and verified, keep the target's distribution."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from msgspec import structs

from engine.composer import compose
from engine.drafter.trees.blocks import draft_blocks
from engine.drafter.trees.choice import DraftVocabulary
from engine.drafter.trees.draft_tree import DraftRequest
from engine.drafter.trees.growth import start_draft
from engine.protocol import Branch
from engine.sampling.history import History
from engine.sampling.keys import NoiseKey
from engine.sampling.noise import Randomness
from engine.sampling.params import SamplingParams
from engine.tree import ROOT, TokenTree
from engine.verify.rules import Row
from tests.engine.drafter.draft_oracles import Path, grown
from tests.support.enumeration import EXACT, SETTINGS, VOCAB, ThreeTokenTarget, worst_error

Streams = Callable[[NoiseKey], Randomness]
Draft = Callable[[Streams, SamplingParams, int], Branch | None]

TWO = DraftVocabulary.of(torch.tensor([0, 2]), VOCAB)
ADDED = torch.from_numpy(np.random.default_rng(5).normal(0.0, 1.5, (VOCAB, VOCAB))).float()


def model(path: Path) -> torch.Tensor:
    row = np.random.default_rng([3, *(token + 1 for token in path)]).normal(0.0, 1.2, VOCAB)
    return torch.from_numpy(row).float()


def level_by_level(streams: Streams, params: SamplingParams, n_nodes: int) -> Branch | None:
    return grown(start_draft(DraftRequest(params, None, 1, 4, 2, n_nodes), 2, 2), model, streams)


def reduced(streams: Streams, params: SamplingParams, n_nodes: int) -> Branch | None:
    tree = start_draft(DraftRequest(params, None, 1, 4, 2, n_nodes), 2, 2)
    return grown(tree, lambda path: model(path)[TWO.ids], streams, TWO)


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

    [branch] = draft_blocks(
        rows[None, :, columns],
        [DraftRequest(params, history, 1, 4, 2, n_nodes)],
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


class SharedNumbers:
    """Keyed streams: who asks with the same key gets the same uniform numbers, one after the other.

    The interval of every number is known; each draw by it decides between parts of that interval.
    """

    def __init__(self, random: Randomness) -> None:
        self._random = random
        self._within: dict[tuple[NoiseKey, int], tuple[float, float]] = {}

    def __call__(self, key: NoiseKey) -> Randomness:
        return _SharedStream(self, key)

    def draw(self, number: tuple[NoiseKey, int], weights: Row) -> int:
        low, high = self._within.get(number, (0.0, 1.0))
        ends = np.cumsum(weights) / weights.sum()
        starts = np.concatenate(([0.0], ends[:-1]))
        parts = np.maximum(np.minimum(ends, high) - np.maximum(starts, low), 0.0)
        token = self._random.draw(parts)
        self._within[number] = max(starts[token], low), min(ends[token], high)
        return token


class _SharedStream:
    def __init__(self, numbers: SharedNumbers, key: NoiseKey) -> None:
        self._numbers, self._key, self._used = numbers, key, 0

    def accept(self, probability: float) -> bool:
        raise AssertionError("a drafter only draws")

    def draw(self, weights: Row) -> int:
        self._used += 1
        return self._numbers.draw((self._key, self._used), weights)


def error(draft: Draft, params: SamplingParams, n_nodes: int, budget: int, *others: Branch) -> float:
    return worst_error(
        ThreeTokenTarget(params), lambda random: composed(draft, params, n_nodes, budget, random, *others)
    )


def composed(
    draft: Draft, params: SamplingParams, n_nodes: int, budget: int, random: Randomness, *others: Branch
) -> TokenTree:
    branch = draft(SharedNumbers(random), structs.replace(params, verification="rejection"), n_nodes)
    assert branch is not None
    assert branch.q is not None
    return compose([*others, branch], budget)


GUESS = (Branch([0, 1], "pld"),)
STOPPING = structs.replace(SETTINGS[0], stop_ids=(2,))  # leaves room for other nodes; the walk does not stop here
# Draft, parameters, nodes, budget, other branches. Every draft with two settings, next to a guess, and with a stop id.
CELLS: list[tuple[str, SamplingParams, int, int, tuple[Branch, ...]]] = [
    *((name, SETTINGS[i], 4, 4, ()) for i, name in enumerate(DRAFTS)),
    *((name, SETTINGS[i - 3], 4, 3, ()) for i, name in enumerate(DRAFTS)),
    *((name, SETTINGS[0], 4, 3 + 3 * (i % 2), GUESS) for i, name in enumerate([*DRAFTS][:4])),
    *((name, STOPPING, 5, 2 + (i + j) % 4, ()) for i, name in enumerate([*DRAFTS][:5]) for j in range(2)),
]


@pytest.mark.parametrize(("name", "params", "n_nodes", "budget", "others"), CELLS)
def test_trees_of_draws_yield_the_autoregressive_distribution(
    name: str, params: SamplingParams, n_nodes: int, budget: int, others: tuple[Branch, ...]
) -> None:
    assert error(DRAFTS[name], params, n_nodes, budget, *others) < EXACT


def test_a_shape_that_depends_on_the_draws_is_detected() -> None:
    """Siblings drawn twice are left out."""

    def without_repetitions(streams: Streams, params: SamplingParams, n_nodes: int) -> Branch | None:
        branch = level_by_level(streams, params, n_nodes)
        assert branch is not None
        assert branch.q is not None
        tokens, parents = [*branch.tokens], [*(branch.parents or ())]
        top = [i for i, token in enumerate(tokens) if parents[i] == ROOT and token not in tokens[:i]]
        return Branch([tokens[i] for i in top], "drafter", [ROOT] * len(top), q=branch.q[top])

    assert error(without_repetitions, SETTINGS[0], 4, 4) > 1e-3
