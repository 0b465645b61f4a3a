"""Bounds and shapes of drafts that grow level by level."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from msgspec import structs

from engine.drafter.trees.chain import Chain
from engine.drafter.trees.growth import grow
from engine.drafter.trees.levels import Levels
from engine.drafter.trees.static import ACCEPTANCE, SIBLING, static_shape
from engine.sampling.params import SamplingParams
from engine.tree import ROOT
from tests.support.draft_oracles import Path, best, grown, paths

VOCAB, POSITION, DEPTH = 5, 20, 4
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=0.9, seed=11)
DRAWN = SamplingParams(temperature=1.0, verification="rejection", stop_ids=(1,))


def model(path: Path, seed: int = 0) -> torch.Tensor:
    row = np.random.default_rng([seed, *(token + 1 for token in path)]).normal(0.0, 1.5, VOCAB)
    return torch.from_numpy(row).float()


@pytest.mark.parametrize("beam", [1, 3])
def test_a_beam_bounds_the_scored_nodes(beam: int) -> None:
    growth = grow(SAMPLED, None, POSITION, DEPTH, 40, beam)
    assert isinstance(growth, Levels)
    branch = grown(growth, model)
    assert branch is not None
    children = [list(branch.parents or ()).count(node) for node in range(ROOT, len(branch.tokens))]
    assert max(children) <= beam
    for depth in range(1, DEPTH):
        assert sum(len(path) == depth and children[i + 1] > 0 for i, path in enumerate(paths(branch))) <= beam


def test_a_chain_ends_where_no_token_can_be_drawn() -> None:
    impossible = torch.full((VOCAB,), -torch.inf)
    for n_possible in (0, 2):
        growth = Chain(GREEDY, None, POSITION, DEPTH)
        branch = grown(growth, lambda path, n=n_possible: model(path) if len(path) < n else impossible)  # type: ignore[misc]
        assert (0 if branch is None else len(branch.tokens)) == n_possible


def naive_shape(depth: int, n_nodes: int) -> dict[Path, float]:
    """Oracle: every node as its ranks among siblings, the best of all."""
    found = {ranks: _estimate(ranks) for d in range(1, depth + 1) for ranks in product(range(n_nodes), repeat=d)}
    return best(found, n_nodes)


def _estimate(ranks: Path) -> float:
    return float(np.prod([ACCEPTANCE * SIBLING**rank for rank in ranks]))


def ranks_of(shape: tuple[int, ...]) -> list[Path]:
    known: list[Path] = []
    for node, parent in enumerate(shape):
        above = known[parent] if parent != ROOT else ()
        known.append((*above, shape[:node].count(parent)))
    return known


@pytest.mark.parametrize(("depth", "n_nodes"), [(1, 3), (2, 30), (3, 8), (4, 7)])
def test_a_static_shape_is_the_best_by_its_estimates(depth: int, n_nodes: int) -> None:
    estimates = [_estimate(ranks) for ranks in ranks_of(static_shape(depth, n_nodes, n_nodes))]
    assert estimates == pytest.approx(sorted(naive_shape(depth, n_nodes).values(), reverse=True))
    assert static_shape(3, 3, 8, (0.9, 0.9, 0.9)) == (ROOT, 0, 1)
    assert static_shape(3, 3, 8, (0.9, 0.01, 0.9)) == (ROOT, ROOT, ROOT), "by the acceptance of its depths"


@pytest.mark.parametrize("seed", range(4))
def test_a_tree_of_draws_has_its_static_shape_except_after_stop_ids(seed: int) -> None:
    shape, params = static_shape(DEPTH, 14, 4), structs.replace(DRAWN, seed=seed)
    branch = grown(grow(params, None, POSITION, DEPTH, 14, 4), partial(model, seed=seed))
    assert branch is not None
    place: dict[int, int] = {ROOT: ROOT}  # node of the shape -> of the branch
    for node, parent in enumerate(shape):
        if parent == ROOT or (parent in place and branch.tokens[place[parent]] not in params.stop_ids):
            place[node] = len(place) - 1
    assert list(branch.parents or ()) == [place[shape[node]] for node in place if node != ROOT]
