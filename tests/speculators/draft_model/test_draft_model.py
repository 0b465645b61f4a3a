"""The drafting model: what it drafts, and which model it is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from engine.errors import ConfigError, UnknownMethodError
from engine.loop import Engine
from engine.protocol import RequestView
from engine.request import Request
from engine.sampling.noise import gumbel_row
from engine.sampling.params import SamplingParams
from engine.target.local import LocalTarget
from engine.tree import ROOT
from speculators.draft_model.config import DraftModelConfig
from speculators.draft_model.speculator import DraftModel
from speculators.pool import SpeculatorPool
from tests.support.draft_models import (
    GREEDY,
    SAMPLED,
    SETTINGS,
    VOCAB,
    begun,
    check_integrity,
    draft_model,
    info,
    reference_model,
    row,
    scored,
    shard,
    text,
    tokens_of,
    view,
    written,
)

# -- what is drafted ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTINGS)
def test_a_chain_is_what_the_model_itself_would_write(name: str) -> None:
    model, params = draft_model(), SETTINGS[name]
    for seed in range(4):
        request = begun(model, view(text(20 + seed, seed), seed, params))
        assert tokens_of(model.propose(request, 64)) == written(text(20 + seed, seed), params, 5)


@pytest.mark.parametrize(("tree_nodes", "at_least"), [(0, 6), (12, 2)])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_target_of_the_same_weights_accepts_every_chain(name: str, tree_nodes: int, at_least: int) -> None:
    """The drafter shares the target's noise and its processors: every step but the last commits K + 1 tokens.

    A tree may leave the end of the chain out for something more probable, its beginning never.
    """
    model = draft_model(tree_nodes=tree_nodes, tree_beam=3)
    target = LocalTarget(info(), [shard()])
    engine = Engine(target, SpeculatorPool(extra={"draft-model": lambda _: model}))
    params = SETTINGS[name]
    jobs = [Request(text(30 + 9 * i, i), _with(params, max_tokens=32), "draft-model") for i in range(3)]
    for _, done in engine.run(jobs, 3):
        if done.finish_reason == "length":
            assert min(done.stats.step_tokens[:-1]) >= at_least, done.stats.step_tokens
    check_integrity(model, 0)


def _with(params: SamplingParams, **changes: Any) -> SamplingParams:
    return SamplingParams(**{name: getattr(params, name) for name in params.__struct_fields__} | changes)


def test_a_chain_ends_at_a_stop_id_at_the_budget_and_at_the_last_token() -> None:
    context = text(24)
    plain = written(context, GREEDY, 5)
    stopping = draft_model()
    request = begun(stopping, view(context, 0, SamplingParams(stop_ids=(plain[2],))))
    assert tokens_of(stopping.propose(request, 64)) == plain[: plain.index(plain[2]) + 1]
    model = draft_model()
    assert tokens_of(model.propose(begun(model, view(context, 1)), 3)) == plain[:3]
    short = begun(model, view(context, 2, SamplingParams(max_tokens=3)))
    assert tokens_of(model.propose(short, 64)) == plain[:2]  # the third token comes without a draft
    assert model.propose(begun(model, view(context, 3, SamplingParams(max_tokens=1))), 64) == []


def brute_force_tree(context: list[int], params: SamplingParams, depth: int, n: int, beam: int) -> dict[Any, float]:
    """Oracle: EAGLE-2's expansion, literally, one model call per path. Path -> its probability, the best ``n``."""
    found: dict[tuple[int, ...], float] = {}
    level: list[tuple[int, ...]] = [()]
    for d in range(depth):
        new: dict[tuple[int, ...], float] = {}
        for path in level:
            scores = scored([*context, *path], params, len(context)).astype(np.float64)
            if not params.is_greedy:
                noise = gumbel_row((params.seed, params.choice, len(context) + d), VOCAB)
                scores = (scores + noise) * params.temperature
            chance = np.exp(scores - scores.max())
            chance /= chance.sum()
            for token in np.argsort(-chance, kind="stable")[:beam]:
                if chance[token] > 0:
                    new[(*path, int(token))] = found.get(path, 1.0) * chance[token]
        found.update(new)
        best = set(sorted(found, key=lambda path: -found[path])[:n])
        level = sorted((path for path in new if path in best), key=lambda path: -new[path])[:beam]
        level = [path for path in level if path[-1] not in params.stop_ids]
    return {path: found[path] for path in sorted(found, key=lambda path: -found[path])[:n]}


@pytest.mark.parametrize("params", [GREEDY, SAMPLED, SETTINGS["truncated"]], ids=["greedy", "sampled", "truncated"])
@pytest.mark.parametrize(("n", "beam", "depth"), [(1, 3, 4), (6, 2, 3), (20, 4, 4), (64, 8, 5)])
def test_a_tree_is_the_best_of_what_beams_reach(params: SamplingParams, n: int, beam: int, depth: int) -> None:
    model = draft_model(tree_nodes=n, tree_beam=beam, draft_tokens=depth)
    for seed in range(2):
        context = text(30, seed)
        [branch] = model.propose(begun(model, view(context, seed, params)), 64)
        wanted = brute_force_tree(context, params, depth, n, beam)
        assert branch.parents is not None
        assert branch.scores is not None
        paths: list[tuple[int, ...]] = []
        chances: list[float] = []
        for token, parent, score in zip(branch.tokens, branch.parents, branch.scores, strict=True):
            assert parent < len(paths)
            paths.append((*(paths[parent] if parent != ROOT else ()), token))
            chances.append((chances[parent] if parent != ROOT else 1.0) * score)
        assert set(paths) == set(wanted)
        assert chances == pytest.approx([wanted[path] for path in paths], rel=1e-3)
        assert chances == sorted(chances, reverse=True), "what the budget cuts must be the least probable"


def test_a_tree_stays_within_the_budget_and_penalised_requests_get_a_chain() -> None:
    model = draft_model(tree_nodes=40, tree_beam=6)
    [branch] = model.propose(begun(model, view(text(20))), 7)
    assert len(branch.tokens) == 7
    request = begun(model, view(text(20), 1, SETTINGS["penalties"]))
    assert tokens_of(model.propose(request, 64)) == written(text(20), SETTINGS["penalties"], 5)


def test_scores_are_probabilities() -> None:
    model = draft_model()
    [branch] = model.propose(begun(model, view(text(25))), 64)
    known, chances = text(25), []
    for token in branch.tokens:
        chances.append(float(torch.softmax(row(tuple(known)), -1)[token]))
        known.append(token)
    assert branch.scores == pytest.approx(chances, rel=1e-3)


@pytest.mark.parametrize("params", [_with(SAMPLED, verification="rejection", top_p=0.9)], ids=["rejection"])
def test_independent_draws_carry_the_distribution_they_came_from(params: SamplingParams) -> None:
    model, context = draft_model(), text(25)
    counts = np.zeros(VOCAB)
    for seed in range(300):
        request = begun(model, view(context, seed, _with(params, seed=seed, max_tokens=4)))
        [branch] = model.propose(request, 64 if seed < 20 else 1)
        model.end(request)
        assert branch.q is not None
        assert branch.scores is None
        known = list(context)
        for token, q in zip(branch.tokens, branch.q, strict=True):
            wanted = torch.softmax(torch.from_numpy(scored(known, params, len(context))).double(), -1).numpy()
            np.testing.assert_allclose(q, wanted, atol=1e-5)
            assert q[token] > 0
            known.append(token)
        counts[branch.tokens[0]] += 1
    q = branch.q[0].astype(np.float64)
    deviation = (counts - 300 * q) / np.sqrt(300 * q * (1 - q) + 1e-9)
    assert np.abs(deviation[q > 0.01]).max() < 4.5
    assert counts[q == 0].sum() == 0


def test_greedy_requests_ignore_the_kind_of_verification() -> None:
    model = draft_model()
    [branch] = model.propose(begun(model, view(text(25), 0, SamplingParams(verification="rejection"))), 64)
    assert branch.q is None
    assert list(branch.tokens) == written(text(25), GREEDY, 5)


# -- which model --------------------------------------------------------------------------------------------------


def test_without_a_model_the_method_names_the_flag() -> None:
    with pytest.raises(UnknownMethodError, match=r"--draft-model DIR") as caught:
        DraftModel(DraftModelConfig())
    assert caught.value.param == "method"


def test_a_model_that_is_not_there_is_refused_at_once(tmp_path: Any) -> None:
    with pytest.raises(Exception, match=str(tmp_path)):
        DraftModel(DraftModelConfig(path=str(tmp_path)))


def test_another_vocabulary_is_refused_by_name() -> None:
    model = draft_model()
    request = RequestView.of(0, Request([1, 2], GREEDY), VOCAB + 3)
    with pytest.raises(ConfigError, match=r"--draft-model has 61 token ids, the target 64"):
        model.begin(request)
    model.end(request)
    check_integrity(model, 0)


def test_a_checkpoint_is_loaded_with_the_first_request(tmp_path: Any) -> None:
    reference_model().save_pretrained(tmp_path)
    model = DraftModel(DraftModelConfig(path=str(tmp_path), kv_gib=1e-4, draft_tokens=3, tree_nodes=0))
    request = begun(model, view(text(30)))
    assert tokens_of(model.propose(request, 64)) == written(text(30), GREEDY, 3)
    assert model.drafter.info.n_blocks == math.floor(1e-4 * 2**30) // (2 * 2 * 64 * 16 * 4)
    model.end(request)
    check_integrity(model, 0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"draft_tokens": 0}, "draft_tokens"),
        ({"tree_nodes": -1}, "tree_nodes"),
        ({"tree_beam": 0}, "tree_beam"),
        ({"prefill_chunk": 0}, "prefill_chunk"),
        ({"block_size": 0}, "block_size"),
        ({"kv_gib": 0.0}, "kv_gib"),
        ({"kv_gib": float("nan")}, "kv_gib"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"draft-model: {named} must be"):
        DraftModelConfig(**changes)
