"""Drafts of a draft model, which model it is, and its cache: the accepted text of live requests, bounded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.composer import compose
from engine.errors import ConfigError
from engine.loop import Engine
from engine.protocol import Branch, Outcome, RequestView
from engine.request import Request
from engine.sampling.noise import gumbel_row
from engine.sampling.params import SamplingParams
from engine.target_model.local import LocalTarget
from engine.target_model.options import TargetOptions
from engine.tree import EMPTY_TREE
from speculators.draft_model.config import DraftModelConfig
from speculators.draft_model.runner import DraftModelRunner, SequenceRows
from speculators.draft_model.speculator import DraftModel
from speculators.method import SpeculatorOptions
from speculators.mixing.fault_isolation import FaultIsolated
from speculators.pool import SpeculatorPool
from tests.speculators.draft_model.draft_models import (
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
from tests.speculators.drafts import Path as Tokens
from tests.speculators.drafts import paths_of, tokens_of


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
    engine = Engine(LocalTarget.of_shards(info(), [shard()]), SpeculatorPool(extra={"draft-model": lambda _: model}))
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
    assert model.drafting.runner.info.n_blocks == int(1e-4 * 2**30) // (2 * 2 * 64 * 16 * 4)
    model.end(request)
    check_integrity(model, 0)


METHODS = ["auto", "draft-model", "pld+draft-model"]


@pytest.mark.parametrize("methods", [METHODS, METHODS[::-1]], ids=["auto first", "auto last"])
def test_all_methods_share_one_model_and_a_failed_load_is_not_repeated(
    methods: list[str], tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[TargetOptions] = []

    def fail(options: TargetOptions) -> DraftModelRunner:
        loads.append(options)
        raise MemoryError("no room for weights")

    monkeypatch.setattr(DraftModelRunner, "load", fail)
    pool = SpeculatorPool(SpeculatorOptions(draft_model=str(tiny_checkpoint)))
    for i, method in enumerate(2 * methods):
        pool.begin(i, Request([1, 2, 3], SamplingParams(), method), 360)
        drafts = pool.advance([(i, Outcome([5], EMPTY_TREE))], {i: 8})
        assert set(drafts) == {i}, "the request continues"
    assert len(loads) == 1


@settings(max_examples=10)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=8), st.sampled_from([0, 10]))
def test_after_any_acceptance_the_next_draft_is_that_of_a_fresh_cache(
    steps: list[tuple[int, bool]], tree_nodes: int
) -> None:
    model = draft_model(tree_nodes=tree_nodes, tree_beam=3)
    request = begun(model, view(text(21), 0, SAMPLED))
    for n_accepted, follows_draft in steps:
        draft = model.propose(request, 64)
        chain = _first_path(draft)
        committed = [(token + (not follows_draft)) % VOCAB for token in chain[:n_accepted]]  # or another part's draft
        committed = [*committed, (len(request.context) * 7 + n_accepted) % VOCAB]
        request.context.extend(committed)
        model.observe(request, Outcome(committed, compose(draft, 64)))
        fresh = draft_model(tree_nodes=tree_nodes, tree_beam=3)
        now = request.context.view.tolist()
        alone = begun(fresh, view(now[: request.n_prompt], 0, SAMPLED, emitted=now[request.n_prompt :]))
        assert paths_of(model.propose(request, 64)) == paths_of(fresh.propose(alone, 64))
    model.end(request)
    check_integrity(model, 0)


def _first_path(branches: Sequence[Branch]) -> list[int]:
    """The path of first children."""
    path: tuple[int, ...] = ()
    for one in paths_of(branches):
        if one[:-1] == path:
            path = one
    return list(path)


@pytest.mark.parametrize("tree_nodes", [0, 12])
def test_requests_drafted_together_get_the_drafts_they_get_alone(tree_nodes: int) -> None:
    together = draft_model(tree_nodes=tree_nodes)
    names = list(SETTINGS)
    requests = [begun(together, view(text(15 + 11 * i, i), i, SETTINGS[name])) for i, name in enumerate(names)]
    budgets = [64, 3, 1, 64, 2, 64]
    drafts = together.propose_batch(requests, budgets)
    for i, draft in enumerate(drafts):
        alone = draft_model(tree_nodes=tree_nodes)
        request = begun(alone, view(text(15 + 11 * i, i), i, SETTINGS[names[i]]))
        assert paths_of(draft) == paths_of(alone.propose(request, budgets[i]))


def test_a_long_text_is_read_once_in_chunks_without_delaying_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = draft_model(prefill_chunk=50), []
    forward = model.drafting.runner.forward

    def watched(parts: Sequence[SequenceRows]) -> torch.Tensor:
        rows.append(sum(len(part.tokens) + (len(part.tree) if part.tree is not None else 0) for part in parts))
        return forward(parts)

    monkeypatch.setattr(model.drafting.runner, "forward", watched)
    requests = [begun(model, view(text(n, i), i)) for i, n in enumerate((20, 220, 60))]
    drafted: list[list[int]] = []
    for _ in range(8):
        rows.clear()
        drafted.append([len(tokens_of(draft)) for draft in model.propose_batch(requests, [64] * 3)])
        assert max(rows) <= 50 + 3 * 6
    assert drafted[0] == [5, 0, 0]
    assert all(counts[0] == 5 for counts in drafted), "a request that is up to date drafts in every step"
    assert drafted[-1] == [5, 5, 5]
    assert sum(rows) <= 3 * 6, "a warm cache scores new tokens only"
    assert tokens_of(model.propose(requests[1], 64)) == written(text(220, 1), GREEDY, 5)


def test_a_request_without_memory_gets_no_drafts_until_blocks_are_free() -> None:
    model = draft_model(n_blocks=10, block_size=8)
    first, second = begun(model, view(text(40), 0)), begun(model, view(text(40, 1), 1))
    drafts = model.propose_batch([first, second], [64, 64])
    assert [len(tokens_of(draft)) for draft in drafts] == [5, 0]
    check_integrity(model, 2)
    assert model.drafting.runner.blocks.owners == {0}
    model.end(first)
    assert tokens_of(model.propose(second, 64)) == written(text(40, 1), GREEDY, 5)
    model.end(second)
    check_integrity(model, 0)


def test_a_text_longer_than_the_drafters_limit_frees_its_blocks() -> None:
    model = draft_model(longest=60)
    request = begun(model, view(text(54)))
    assert len(tokens_of(model.propose(request, 64))) == 5
    request.context.extend([3, 4])
    assert model.propose(request, 64) == []
    assert model.drafting.runner.blocks.n_free == model.drafting.runner.blocks.n_blocks
    check_integrity(model, 1)


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["begin", "begin", "step", "step", "step", "read", "end", "again"]), st.integers(0, 5)),
    min_size=8,
    max_size=25,
)


@given(ACTIONS, st.integers(6, 40), st.sampled_from([0, 7]))
def test_no_block_is_ever_lost(actions: list[tuple[str, int]], n_blocks: int, tree_nodes: int) -> None:
    """Random lives of six requests on a cache that is too small for them; every draft must be a fresh one's."""
    model = draft_model(n_blocks=n_blocks, block_size=4, tree_nodes=tree_nodes, tree_beam=2, prefill_chunk=16)
    live: dict[int, RequestView] = {}
    for action, number in actions:
        request = live.get(number)
        if action == "begin" and request is None:
            live[number] = begun(model, view(text(8 + 9 * number, number), number, SAMPLED))
        elif action == "step":
            for one, draft in zip(live.values(), model.propose_batch([*live.values()], [64] * len(live)), strict=True):
                path = _first_path(draft)
                if path and not tree_nodes:
                    assert path == written(one.context.view.tolist(), SAMPLED, len(path), one.n_prompt)
                committed = [*path[: (number + one.request_id) % 5], number]
                one.context.extend(committed)
                model.observe(one, Outcome(committed, compose(draft, 64)))
        elif action == "read" and request is not None:
            model.observe(request, Outcome((), EMPTY_TREE))
        elif action == "end" and request is not None:
            model.end(live.pop(number))
        elif action == "again" and request is None:
            model.end(view(text(4), number))  # cancelled before it began
        check_integrity(model, len(live))
    for request in live.values():
        model.end(request)
    check_integrity(model, 0)


def test_a_failed_forward_corrupts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = draft_model()
    isolated = FaultIsolated(model)
    requests = [view(text(30, i), i) for i in range(2)]
    for request in requests:
        isolated.begin(request)
    forward, calls = model.drafting.runner.forward, []

    def failing(parts: Sequence[SequenceRows]) -> torch.Tensor:
        calls.append(parts)
        if len(calls) == 3:
            raise RuntimeError("no kernel")
        return forward(parts)

    monkeypatch.setattr(model.drafting.runner, "forward", failing)
    drafts = isolated.propose_batch(requests, [64, 64])  # fails for both, then succeeds one by one
    for request, draft in zip(requests, drafts, strict=True):
        assert tokens_of(draft) == written(text(30, request.request_id), GREEDY, 5)
        isolated.end(request)
    check_integrity(model, 0)
