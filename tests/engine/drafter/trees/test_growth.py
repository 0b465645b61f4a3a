"""Drafts of drafters that run once per depth, against all paths there are."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from msgspec import structs

from engine.composer import compose
from engine.drafter.trees.chain import Chain
from engine.drafter.trees.choice import choose
from engine.drafter.trees.growth import grow
from engine.drafter.trees.levels import Levels
from engine.drafter.trees.static import ACCEPTANCE, SIBLING, StaticTree, static_shape
from engine.protocol import Branch
from engine.sampling.history import History
from engine.sampling.params import SamplingParams
from engine.tree import ROOT
from engine.verify.rules import walk_text
from tests.support.draft_oracles import Path, best, chances, every_path, grown, path_to, paths, products, written

VOCAB, POSITION, DEPTH = 5, 20, 4
SETTINGS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.9, seed=11),
    "truncated": SamplingParams(temperature=1.2, top_p=0.8, top_k=3, seed=3),
    "stopping": SamplingParams(temperature=1.0, seed=8, stop_ids=(1, 3)),
    "biased": SamplingParams(temperature=1.5, seed=9, logit_bias={2: 1.5}),
}
DRAWN = SamplingParams(temperature=1.0, verification="rejection", stop_ids=(1,))


def model(path: Path, seed: int = 0) -> torch.Tensor:
    row = np.random.default_rng([seed, *(token + 1 for token in path)]).normal(0.0, 1.5, VOCAB)
    return torch.from_numpy(row).float()


def tree(params: SamplingParams, n_nodes: int, beam: int = 200, depth: int = DEPTH) -> Branch:
    branch = grown(grow(params, None, POSITION, depth, n_nodes, beam), model)
    assert branch is not None
    return branch


# -- the most probable tree --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_nodes", [1, 2, 7, 30, 1000])
@pytest.mark.parametrize("name", SETTINGS)
def test_without_a_beam_the_best_of_all_paths_are_kept(name: str, n_nodes: int) -> None:
    branch = tree(SETTINGS[name], n_nodes)
    wanted = best(every_path(model, SETTINGS[name], POSITION, DEPTH), n_nodes)
    assert set(paths(branch)) == set(wanted)
    assert len(branch.tokens) == len(wanted), "no node comes twice"
    assert products(branch) == pytest.approx([wanted[path] for path in paths(branch)], rel=1e-4)
    assert products(branch) == sorted(products(branch), reverse=True)


@pytest.mark.parametrize("n_nodes", [2, 7, 30])
def test_only_what_may_be_kept_is_scored(n_nodes: int) -> None:
    params, expanded = SETTINGS["stopping"], [ROOT]
    growth = Levels(params, POSITION, DEPTH, n_nodes, 200)
    for level in range(1, DEPTH):
        rows = torch.stack([model(path_to(growth, node)) for node in expanded])
        expanded = growth.take(choose(rows, growth.asks()))
        kept = best(every_path(model, params, POSITION, level), n_nodes)
        alive = [path for path in kept if len(path) == level and path[-1] not in params.stop_ids]
        assert [path_to(growth, node) for node in expanded] == alive, "best first"
        if not expanded:
            return
    assert growth.take(choose(torch.zeros(len(expanded), VOCAB), growth.asks())) == []


@pytest.mark.parametrize("beam", [1, 2, 3])
def test_a_beam_bounds_what_is_scored(beam: int) -> None:
    growth = grow(SETTINGS["sampled"], None, POSITION, DEPTH, 40, beam)
    assert isinstance(growth, Levels)
    branch = grown(growth, model)
    assert branch is not None
    children = [list(branch.parents or ()).count(node) for node in range(ROOT, len(branch.tokens))]
    assert max(children) <= beam
    for depth in range(1, DEPTH):
        assert sum(len(path) == depth and children[i + 1] > 0 for i, path in enumerate(paths(branch))) <= beam


# -- what a perfect drafter is worth -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("n_nodes", [3, 12, 1000])
def test_a_target_that_writes_what_the_drafter_would_accepts_all_there_is(name: str, n_nodes: int) -> None:
    """Under the target's own noise the first child of every node is the target's token."""
    params = SETTINGS[name]
    text = written(model, params, POSITION, DEPTH)
    stops = [i for i, token in enumerate(text) if token in params.stop_ids]
    reach = stops[0] + 1 if stops else DEPTH
    drafted = set(paths(tree(params, n_nodes)))
    longest = max(d for d in range(1, DEPTH + 1) if text[:d] in drafted)
    assert longest == reach if n_nodes == 1000 else longest >= 1
    _, accepted = walk_text(compose([tree(params, n_nodes)], 1000), text)
    assert len(accepted) == longest
    chain = grown(Chain(params, None, POSITION, DEPTH), model)
    assert chain is not None
    assert tuple(chain.tokens) == text[:reach]


def test_a_chain_knows_the_history_of_its_own_path() -> None:
    params = SamplingParams(temperature=0.8, frequency_penalty=2.0, repetition_penalty=1.4, seed=2)
    branch = grown(grow(params, History([0, 1], [1]), POSITION, DEPTH, 9, 3), model)
    assert branch is not None
    wanted: Path = ()
    for d in range(DEPTH):
        wanted = (*wanted, int(chances(model(wanted), params, POSITION + d, History([0, 1], [1, *wanted])).argmax()))
    assert tuple(branch.tokens) == wanted
    assert branch.parents is None


def test_a_chain_ends_where_no_token_can_be_drawn() -> None:
    impossible = torch.full((VOCAB,), -torch.inf)
    for n_possible in (0, 2):
        growth = Chain(SETTINGS["greedy"], None, POSITION, DEPTH)
        branch = grown(growth, lambda path, n=n_possible: model(path) if len(path) < n else impossible)  # type: ignore[misc]
        assert (0 if branch is None else len(branch.tokens)) == n_possible


# -- draws -------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("depth", "n_nodes"), [(1, 3), (2, 30), (3, 8), (4, 7), (5, 5)])
def test_a_static_shape_is_the_best_by_its_estimates(depth: int, n_nodes: int) -> None:
    estimates = [_estimate(ranks) for ranks in ranks_of(static_shape(depth, n_nodes, n_nodes))]
    assert estimates == pytest.approx(sorted(naive_shape(depth, n_nodes).values(), reverse=True))


@examples(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(1, 6))
def test_a_static_shape_keeps_its_bounds(depth: int, n_nodes: int, beam: int) -> None:
    shape = static_shape(depth, n_nodes, beam)
    assert 1 <= len(shape) <= n_nodes
    assert all(ROOT <= parent < node for node, parent in enumerate(shape))
    ranks = ranks_of(shape)
    assert max(map(len, ranks)) <= depth
    assert max(shape.count(parent) for parent in shape) <= beam
    for d in range(depth):
        assert len({path[:-1] for path in ranks if len(path) == d + 1}) <= beam


def test_a_shape_follows_the_acceptance_of_its_depths() -> None:
    assert static_shape(3, 3, 8, (0.9, 0.9, 0.9)) == (ROOT, 0, 1)
    assert static_shape(3, 3, 8, (0.9, 0.01, 0.9)) == (ROOT, ROOT, ROOT)


@pytest.mark.parametrize("seed", range(12))
def test_a_tree_of_draws_has_its_shape_whatever_is_drawn_but_below_stop_ids(seed: int) -> None:
    shape, params = static_shape(DEPTH, 14, 4), structs.replace(DRAWN, seed=seed)
    branch = grown(grow(params, None, POSITION, DEPTH, 14, 4), partial(model, seed=seed))
    assert branch is not None
    assert branch.q is not None
    assert branch.scores is None
    for path, q in zip(paths(branch), branch.q, strict=True):
        np.testing.assert_allclose(q, torch.softmax(model(path[:-1], seed).double(), -1), atol=1e-6)
    place: dict[int, int] = {ROOT: ROOT}  # node of the shape -> of the branch
    for node, parent in enumerate(shape):
        if parent == ROOT or (parent in place and branch.tokens[place[parent]] not in params.stop_ids):
            place[node] = len(place) - 1
    assert list(branch.parents or ()) == [place[shape[node]] for node in place if node != ROOT]


# -- which of them -----------------------------------------------------------------------------------------------


def test_a_request_gets_the_draft_that_suits_it() -> None:
    history = History([1])
    assert isinstance(grow(SETTINGS["greedy"], None, POSITION, 4, 4, 2), Levels)
    assert isinstance(grow(SETTINGS["sampled"], None, POSITION, 4, 9, 2), Levels)
    assert isinstance(grow(SETTINGS["sampled"], history, POSITION, 4, 9, 2), Chain)
    assert isinstance(grow(structs.replace(DRAWN, temperature=0.0), None, POSITION, 4, 9, 2), Levels)
    assert isinstance(grow(DRAWN, None, POSITION, 4, 9, 2), StaticTree)
    assert isinstance(grow(DRAWN, None, POSITION, 4, 4, 2), Chain)
    assert isinstance(grow(DRAWN, history, POSITION, 4, 9, 2), Chain)


@pytest.mark.parametrize("params", [*SETTINGS.values(), DRAWN], ids=[*SETTINGS, "drawn"])
@pytest.mark.parametrize("history", [None, [1, 2]])
def test_budgets_are_kept(params: SamplingParams, history: list[int] | None) -> None:
    for n_nodes in (1, 2, 3, 6):
        for depth in (1, 2, 4):
            known = None if history is None else History(history)
            branch = grown(grow(params, known, POSITION, depth, n_nodes, 3), model)
            assert branch is not None
            assert len(branch.tokens) <= n_nodes
            assert max(len(path) for path in paths(branch)) <= depth
