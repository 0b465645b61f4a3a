"""Tokens chosen from rows, and bounds and shapes of the trees that grow from them."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from engine.drafter.trees.blocks import N_CANDIDATES, draft_blocks
from engine.drafter.trees.choice import ChoiceRequest, DraftVocabulary, choose_tokens, draft_randomness
from engine.drafter.trees.draft_tree import DraftRequest
from engine.drafter.trees.growth import ACCEPTANCE, SIBLING, RankedTree, start_chain, start_draft, static_shape
from engine.sampling.history import History
from engine.sampling.noise import KeyedRandom, Randomness
from engine.sampling.params import SamplingParams
from engine.tree import ROOT
from tests.engine.drafter.draft_oracles import Path, best, chances, grown, paths
from tests.support.enumeration import every_outcome
from tests.support.pretended_device import pretended_device

VOCAB, POSITION, DEPTH = 30, 20, 4
IDS = [1, 2, 3, 5, 8, 9, 10, 13, 17, 20, 21, 29]
SETTINGS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=0.9, seed=11),
    "truncated": SamplingParams(temperature=1.2, top_p=0.8, top_k=5, min_p=0.02, seed=3, choice=2),
    "penalties": SamplingParams(temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.4, seed=5),
    "greedy with penalties": SamplingParams(presence_penalty=1.0, repetition_penalty=1.2),
    "biased": SamplingParams(temperature=1.0, logit_bias={8: 3.0, 7: 5.0}, min_tokens=6, stop_ids=(9, 4), seed=1),
    "drawn": SamplingParams(temperature=0.8, verification="rejection", seed=4),
    "drawn, truncated": SamplingParams(temperature=0.8, top_k=4, logit_bias={8: 2.0}, verification="rejection", seed=4),
    "drawn with penalties": SamplingParams(temperature=0.8, frequency_penalty=0.9, verification="rejection", seed=4),
}


def ask(params: SamplingParams, k: int = 4, position: int = 12) -> ChoiceRequest:
    return ChoiceRequest(params, History([5, 8, 8], [10, 1, 10]), position, k)


def request(params: SamplingParams, n_nodes: int) -> DraftRequest:
    return DraftRequest(params, None, 2, POSITION, DEPTH, n_nodes)


def rows(n: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed)) * 2


def test_draws_of_one_ask_are_independent() -> None:
    logits, params = rows(1, 3), SETTINGS["drawn"]
    q = torch.softmax(logits[0].double() / 0.8, -1).numpy()
    found: dict[tuple[int, ...], float] = defaultdict(float)

    def program(random: Randomness) -> tuple[int, ...]:
        [choice] = choose_tokens(logits, [ask(params, 2)], lambda key: random)
        return tuple(choice.tokens)

    for tokens, weight in every_outcome(program):
        found[tokens] += weight
    assert found == pytest.approx({(a, b): q[a] * q[b] for a in range(3) for b in range(3)}, abs=1e-6)


def test_more_draws_do_not_change_the_first() -> None:
    logits = rows(1, VOCAB)
    [one] = choose_tokens(logits, [ask(SETTINGS["drawn"], 1)])
    [many] = choose_tokens(logits, [ask(SETTINGS["drawn"], 40)])
    assert many.tokens[:1] == one.tokens
    assert len(many.tokens) == 40 > len(set(many.tokens)), "draws may repeat"
    assert many.q is not None
    assert many.q.shape == (VOCAB,)
    assert many.scores == []
    random = draft_randomness((4, 0, 12))
    assert many.tokens == [random.draw(many.q.astype(np.float64)) for _ in range(40)]


@pytest.mark.parametrize("reduced", [True, False])
def test_no_row_depends_on_another_or_on_the_device(reduced: bool) -> None:
    vocabulary = DraftVocabulary.of(torch.tensor(IDS), VOCAB) if reduced else None
    asks = [ask(params, k) for k, params in enumerate([*SETTINGS.values()] * 2, 1)]
    logits = rows(len(asks), len(IDS) if reduced else VOCAB)
    before = logits.clone()
    together = choose_tokens(logits, asks, vocabulary=vocabulary)
    assert torch.equal(logits, before)
    with pretended_device():
        on_device = choose_tokens(logits, asks, vocabulary=vocabulary)
    for i, one in enumerate(asks):
        [alone] = choose_tokens(logits[i : i + 1], [one], vocabulary=vocabulary)
        assert together[i].tokens == alone.tokens == on_device[i].tokens
        assert together[i].scores == pytest.approx(alone.scores, rel=1e-6)
        assert together[i].scores == pytest.approx(on_device[i].scores, rel=1e-5)
        if alone.q is not None:
            np.testing.assert_array_equal(together[i].q, alone.q)
    assert choose_tokens(logits[:0], [], vocabulary=vocabulary) == []


@pytest.mark.parametrize("name", ["greedy", "sampled"])
def test_no_token_is_chosen_where_none_can_be_drawn(name: str) -> None:
    vocabulary = DraftVocabulary.of(torch.tensor(IDS), VOCAB)
    outside = structs.replace(SETTINGS[name], allowed_ids=(4, 6))
    some = structs.replace(SETTINGS[name], allowed_ids=(4, 6, 8))
    none, one = choose_tokens(rows(2, len(IDS)), [ask(outside), ask(some)], vocabulary=vocabulary)
    assert (none.tokens, none.scores) == ([], [])
    assert (one.tokens, one.scores) == ([8], [1.0])


def test_drafts_and_verification_share_no_random_number() -> None:
    logits = torch.zeros(1, 2)
    params = [structs.replace(SETTINGS["drawn"], seed=seed) for seed in range(400)]
    drawn = np.array([choose_tokens(logits, [ask(one, 1)])[0].tokens[0] for one in params])
    verified = np.array([KeyedRandom((seed, 0, 12)).draw(np.ones(2)) for seed in range(400)])
    assert abs(np.corrcoef(drawn, verified)[0, 1]) < 0.2


def model(path: Path, seed: int = 0) -> torch.Tensor:
    row = np.random.default_rng([seed, *(token + 1 for token in path)]).normal(0.0, 1.5, 5)
    return torch.from_numpy(row).float()


@pytest.mark.parametrize("beam", [1, 3])
def test_a_beam_bounds_the_scored_nodes(beam: int) -> None:
    tree = start_draft(request(SETTINGS["sampled"], 40), DEPTH, beam)
    assert isinstance(tree, RankedTree)
    branch = grown(tree, model)
    assert branch is not None
    children = [list(branch.parents or ()).count(node) for node in range(ROOT, len(branch.tokens))]
    assert max(children) <= beam
    for depth in range(1, DEPTH):
        assert sum(len(path) == depth and children[i + 1] > 0 for i, path in enumerate(paths(branch))) <= beam


def test_a_chain_ends_where_no_token_can_be_drawn() -> None:
    impossible = torch.full((5,), -torch.inf)
    for n_possible in (0, 2):
        tree = start_chain(request(SETTINGS["greedy"], 40), DEPTH)
        branch = grown(tree, lambda path, n=n_possible: model(path) if len(path) < n else impossible)  # type: ignore[misc]
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
    narrow = static_shape(depth, n_nodes, 2)
    assert max(narrow.count(parent) for parent in narrow) <= 2, "a beam bounds the children of a node"
    assert all(len({path[:-1] for path in ranks_of(narrow) if len(path) == d}) <= 2 for d in range(1, depth + 1))
    assert static_shape(3, 3, 8, (0.9, 0.9, 0.9)) == (ROOT, 0, 1)
    assert static_shape(3, 3, 8, (0.9, 0.01, 0.9)) == (ROOT, ROOT, ROOT), "by the acceptance of its depths"


@pytest.mark.parametrize("seed", range(4))
def test_a_tree_of_draws_has_its_static_shape_except_after_stop_ids(seed: int) -> None:
    shape = static_shape(DEPTH, 14, 4)
    params = SamplingParams(temperature=1.0, verification="rejection", stop_ids=(1,), seed=seed)
    branch = grown(start_draft(request(params, 14), DEPTH, 4), partial(model, seed=seed))
    assert branch is not None
    place: dict[int, int] = {ROOT: ROOT}  # node of the shape -> of the branch
    for node, parent in enumerate(shape):
        if parent == ROOT or (parent in place and branch.tokens[place[parent]] not in params.stop_ids):
            place[node] = len(place) - 1
    assert list(branch.parents or ()) == [place[shape[node]] for node in place if node != ROOT]


WIDTH = 3 * N_CANDIDATES
LIKELY = [5, 70, 150, 190]  # ids, not columns of candidates
BY_ID: dict[str, dict[str, Any]] = {
    "allowed": {"allowed_ids": (70, 150, 190)},
    "bad words": {"bad_words": ((5,), (150,), (0,))},
    "bias": {"logit_bias": {5: -50.0, 70: 1.0}},
    "all": {"allowed_ids": (70, 150, 190), "bad_words": ((150,),), "logit_bias": {190: 2.0}},
}


@pytest.mark.parametrize("heat", [0.0, 0.9], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", BY_ID)
def test_parameters_by_id_hold_where_a_condition_sees_a_few_candidates(name: str, heat: float) -> None:
    logits, bonus = rows(3, WIDTH) / 2 - 20.0, rows(WIDTH, WIDTH, seed=1) / 2
    logits[:, LIKELY] += 25.0  # the others do not count

    def condition(
        parents: torch.Tensor, sequences: torch.Tensor, depth: int, states: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return bonus[parents], None

    params = SamplingParams(temperature=heat, seed=7, **BY_ID[name])
    limited, free = request(params, 12), request(SamplingParams(temperature=heat, seed=7), 12)
    branch, other = draft_blocks(logits.expand(2, -1, -1), [limited, free], "drafter", condition=condition)
    assert branch is not None
    assert other is not None
    assert set(other.tokens) & {5, 150}, "the parameters matter"
    assert set(branch.tokens) <= set(params.allowed_ids or range(WIDTH))
    assert not {(token,) for token in branch.tokens} & set(params.bad_words)
    assert branch.scores is not None
    for path, score in zip(paths(branch), branch.scores, strict=True):
        row = logits[len(path) - 1] + bonus[(2, *path)[-2]]
        assert score == pytest.approx(chances(row, params, POSITION + len(path) - 1)[path[-1]], rel=1e-3, abs=1e-9)
