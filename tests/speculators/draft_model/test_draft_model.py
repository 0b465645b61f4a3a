"""Drafts of a draft model, and which model it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.errors import ConfigError
from engine.loop import Engine
from engine.protocol import Outcome
from engine.request import Request
from engine.sampling.noise import gumbel_row
from engine.sampling.params import SamplingParams
from engine.target.local import LocalTarget
from engine.target.options import TargetOptions
from engine.tree import EMPTY_TREE
from speculators import registry
from speculators.draft_model.config import DraftModelConfig
from speculators.draft_model.drafter import Drafter
from speculators.draft_model.speculator import DraftModel
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions
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
    view,
    written,
)
from tests.support.drafts import Path as Tokens
from tests.support.drafts import paths_of, tokens_of


@pytest.mark.parametrize("name", SETTINGS)
def test_a_chain_is_the_text_of_the_draft_model_alone(name: str) -> None:
    model, params = draft_model(), SETTINGS[name]
    for seed in range(2):
        known, chances = text(20 + seed, seed), []
        [branch] = model.propose(begun(model, view(known, seed, params)), 64)
        assert list(branch.tokens) == written(known, params, 5)
        for token in branch.tokens:
            chances.append(float(torch.softmax(row(tuple(known)), -1)[token]))
            known.append(token)
        if name == "greedy":
            assert branch.scores == pytest.approx(chances, rel=1e-3)


@pytest.mark.parametrize(("tree_nodes", "at_least"), [(0, 6), (12, 2)])
def test_a_target_of_the_same_weights_accepts_every_chain(tree_nodes: int, at_least: int) -> None:
    """The drafter shares the target's noise and its processors: every step but the last commits K + 1 tokens.

    A tree may leave the end of the chain out for something more probable, its beginning never.
    """
    model = draft_model(tree_nodes=tree_nodes, tree_beam=3)
    engine = Engine(LocalTarget(info(), [shard()]), SpeculatorPool(extra={"draft-model": lambda _: model}))
    params = [_with(one, max_tokens=20) for one in SETTINGS.values()]
    jobs = [Request(text(30 + 9 * i, i), one, "draft-model") for i, one in enumerate(params)]
    for _, done in engine.run(jobs, 3):
        if done.finish_reason == "length":
            assert min(done.stats.step_tokens[:-1]) >= at_least, done.stats.step_tokens
    check_integrity(model, 0)


def _with(params: SamplingParams, **changes: Any) -> SamplingParams:
    return SamplingParams(**{name: getattr(params, name) for name in params.__struct_fields__} | changes)


def test_a_chain_ends_at_a_stop_id_at_the_budget_and_at_the_last_token() -> None:
    context, model = text(24), draft_model()
    plain = written(context, GREEDY, 5)
    cases = [
        (SamplingParams(stop_ids=(plain[2],)), 64, plain[: plain.index(plain[2]) + 1]),
        (GREEDY, 3, plain[:3]),
        (SamplingParams(max_tokens=3), 64, plain[:2]),  # the third token comes without a draft
        (SamplingParams(max_tokens=1), 64, []),
        (SamplingParams(verification="rejection"), 64, plain),  # greedy requests ignore the kind of verification
    ]
    for number, (params, budget, drafted) in enumerate(cases):
        branches = model.propose(begun(model, view(context, number, params)), budget)
        assert tokens_of(branches) == drafted
        assert all(branch.q is None for branch in branches)


def brute_force_tree(context: list[int], params: SamplingParams, depth: int, n: int, beam: int) -> dict[Tokens, float]:
    """Oracle: EAGLE-2's expansion, literally, one model call per path. Path -> its probability, the best ``n``."""
    found: dict[Tokens, float] = {}
    level: list[Tokens] = [()]
    for d in range(depth):
        new: dict[Tokens, float] = {}
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


@pytest.mark.parametrize(
    ("name", "n", "beam", "depth"),
    [("greedy", 1, 3, 4), ("greedy", 20, 4, 4), ("sampled", 20, 4, 4), ("truncated", 6, 2, 3), ("truncated", 40, 6, 3)],
)
def test_a_tree_is_the_best_part_of_the_beams(name: str, n: int, beam: int, depth: int) -> None:
    model, context, params = draft_model(tree_nodes=n, tree_beam=beam, draft_tokens=depth), text(30), SETTINGS[name]
    [branch] = model.propose(begun(model, view(context, 0, params)), 64)
    best = brute_force_tree(context, params, depth, n, beam)
    paths, chances = paths_of([branch]), {(): 1.0}
    assert branch.scores is not None
    for path, score in zip(paths, branch.scores, strict=True):
        chances[path] = chances[path[:-1]] * score
    assert set(paths) == set(best)
    found = [chances[path] for path in paths]
    assert found == pytest.approx([best[path] for path in paths], rel=1e-3)
    assert found == sorted(found, reverse=True), "the budget must cut the least probable"
    few = model.propose(begun(model, view(context, 1, params)), max(n // 3, 1))
    assert paths_of(few) == paths[: max(n // 3, 1)]


def test_penalised_requests_get_a_chain_in_place_of_a_tree() -> None:
    model, params = draft_model(tree_nodes=40, tree_beam=6), SETTINGS["penalties"]
    assert tokens_of(model.propose(begun(model, view(text(20), 1, params)), 64)) == written(text(20), params, 5)


def test_independent_draws_carry_the_distribution_they_came_from() -> None:
    params, model, context = _with(SAMPLED, verification="rejection", top_p=0.9), draft_model(), text(25)
    counts = np.zeros(VOCAB)
    for seed in range(300):
        request = begun(model, view(context, seed, _with(params, seed=seed, max_tokens=4)))
        [branch] = model.propose(request, 64 if seed < 3 else 1)
        model.end(request)
        assert branch.q is not None
        assert branch.scores is None
        known = list(context)
        for token, q in zip(branch.tokens, branch.q, strict=True):
            if seed < 3:
                expected = torch.softmax(torch.from_numpy(scored(known, params, len(context))).double(), -1).numpy()
                np.testing.assert_allclose(q, expected, atol=1e-5)
            assert q[token] > 0
            known.append(token)
        counts[branch.tokens[0]] += 1
    q = branch.q[0].astype(np.float64)
    deviation = (counts - 300 * q) / np.sqrt(300 * q * (1 - q) + 1e-9)
    assert np.abs(deviation[q > 0.01]).max() < 4.5
    assert counts[q == 0].sum() == 0


def test_a_missing_model_and_another_vocabulary_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=str(tmp_path)):
        DraftModel(DraftModelConfig(path=str(tmp_path)))
    model, request = draft_model(), view([1, 2], vocab_size=VOCAB + 3)
    with pytest.raises(ConfigError, match=r"--draft-model has 61 token ids, the target 64"):
        model.begin(request)
    model.end(request)
    check_integrity(model, 0)


def test_a_checkpoint_is_loaded_with_the_first_request(tmp_path: Path) -> None:
    reference_model().save_pretrained(tmp_path)
    model = DraftModel(DraftModelConfig(path=str(tmp_path), kv_gib=1e-4, draft_tokens=3, tree_nodes=0))
    request = begun(model, view(text(30)))
    assert tokens_of(model.propose(request, 64)) == written(text(30), GREEDY, 3)
    assert model.drafter.info.n_blocks == int(1e-4 * 2**30) // (2 * 2 * 64 * 16 * 4)
    model.end(request)
    check_integrity(model, 0)


METHODS = ["auto", "draft-model", "pld+draft-model"]


@pytest.mark.parametrize("methods", [METHODS, METHODS[::-1]], ids=["auto first", "auto last"])
def test_all_methods_share_one_model_and_a_failed_load_is_not_repeated(
    methods: list[str], tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[DraftModel] = []
    loads: list[TargetOptions] = []

    def make(config: DraftModelConfig) -> DraftModel:
        made.append(DraftModel(config))
        return made[-1]

    def fail(options: TargetOptions) -> Drafter:
        loads.append(options)
        raise MemoryError("no room for weights")

    monkeypatch.setattr(registry, "DraftModel", make)
    monkeypatch.setattr(Drafter, "load", fail)
    pool = SpeculatorPool(SpeculatorOptions(draft_model=DraftModelConfig(str(tiny_checkpoint))))
    for i, method in enumerate(2 * methods):
        pool.begin(i, Request([1, 2, 3], SamplingParams(), method), 360)
        drafts = pool.advance([(i, Outcome([5], EMPTY_TREE))], {i: 8})
        assert set(drafts) == {i}, "the request continues"
    assert (len(made), len(loads)) == (1, 1)
