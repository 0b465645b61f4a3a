"""The drafting model: what it drafts, what its cache holds, and that nothing of it leaks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from engine.composer import compose
from engine.errors import ConfigError, UnknownMethodError
from engine.loop import Engine
from engine.model.ranges import split_layers
from engine.model.shard import ModelShard
from engine.model.spec import read_spec
from engine.protocol import Branch, Outcome, RequestView
from engine.request import Request
from engine.sampling.noise import gumbel_row
from engine.sampling.params import SamplingParams
from engine.sampling.processors import History, process
from engine.target.info import TargetInfo
from engine.target.local import LocalTarget
from engine.tree import EMPTY_TREE, ROOT
from speculators.draft_model.drafter import Drafter, Rows
from speculators.draft_model.speculator import DraftModel, DraftModelConfig
from speculators.mixing.fault_isolation import FaultIsolated
from speculators.pool import SpeculatorPool

VOCAB, EOS, LONGEST = 61, 2, 400
GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.9, seed=11)
SETTINGS = {
    "greedy": GREEDY,
    "sampled": SAMPLED,
    "truncated": SamplingParams(temperature=1.2, top_p=0.8, top_k=20, min_p=0.02, seed=3, choice=2),
    "penalties": SamplingParams(temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.4, seed=5),
    "greedy with penalties": SamplingParams(presence_penalty=1.0, repetition_penalty=1.2),
    "biased": SamplingParams(temperature=1.0, logit_bias={7: 3.0, 8: -5.0}, min_tokens=6, stop_ids=(9, 10), seed=1),
}

torch.set_num_threads(1)


@lru_cache
def tiny() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        initializer_range=0.3,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).float().eval()


@lru_cache
def shard() -> ModelShard:
    spec = read_spec(tiny().config)
    return ModelShard(tiny(), spec, split_layers(spec.n_layers, 1)[0], 600)


@lru_cache
def reference_model() -> Any:
    """The same weights, untouched by the engine's attention."""
    torch.manual_seed(0)
    made = LlamaForCausalLM(tiny().config.__class__(**tiny().config.to_dict())).float().eval()
    made.load_state_dict(tiny().state_dict())
    made.set_attn_implementation("eager")
    return made


@pytest.fixture(scope="module", autouse=True)
def _weights() -> None:
    reference_model()  # before the shard takes hold of its own copy


def info(n_blocks: int = 200, block_size: int = 8, longest: int = LONGEST) -> TargetInfo:
    return TargetInfo(shard().spec, n_blocks, block_size, longest)


def draft_model(n_blocks: int = 200, block_size: int = 8, longest: int = LONGEST, **changes: Any) -> DraftModel:
    config = DraftModelConfig(**({"tree_nodes": 0} | changes))
    return DraftModel(config, Drafter(shard(), info(n_blocks, block_size, longest)))


def view(tokens: Sequence[int], number: int = 0, params: SamplingParams = GREEDY) -> RequestView:
    return RequestView.of(number, Request(tokens, params), VOCAB)


def text(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(11, VOCAB, n).tolist()


def begun(model: DraftModel, request: RequestView) -> RequestView:
    model.begin(request)
    return request


def tokens_of(branches: Sequence[Branch]) -> list[int]:
    assert len(branches) <= 1
    return list(branches[0].tokens) if branches else []


def check_integrity(model: DraftModel, live: int) -> None:
    drafter = model.drafter
    drafter.blocks.check_integrity()
    assert len(drafter._cached) == live == drafter._stage.n_sequences
    if not live:
        assert drafter.blocks.n_free == drafter.blocks.n_blocks


@lru_cache(maxsize=4096)
def row(tokens: tuple[int, ...]) -> torch.Tensor:
    """Hugging Face's logits behind ``tokens``."""
    with torch.inference_mode():
        return reference_model()(torch.tensor([tokens])).logits[0, -1].float()  # type: ignore[no-any-return]


def written(tokens: Sequence[int], params: SamplingParams, n: int, n_prompt: int | None = None) -> list[int]:
    """Oracle: what the drafter's model writes behind ``tokens`` by itself, token by token."""
    n_prompt = len(tokens) if n_prompt is None else n_prompt
    known = list(tokens)
    for _ in range(n):
        scores = scored(known, params, n_prompt)
        noise = 0.0 if params.is_greedy else gumbel_row((params.seed, params.choice, len(known)), VOCAB)
        known.append(int((scores + noise).argmax()))
    return known[len(tokens) :]


def scored(tokens: Sequence[int], params: SamplingParams, n_prompt: int) -> Any:
    history = History(tokens[:n_prompt], tokens[n_prompt:])
    return process(row(tuple(tokens))[None], [params], [history])[0].numpy()


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


# -- the cache ---------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=8), st.sampled_from([0, 10]))
def test_whatever_is_accepted_the_next_draft_is_that_of_a_fresh_cache(
    steps: list[tuple[int, bool]], tree_nodes: int
) -> None:
    model = draft_model(tree_nodes=tree_nodes, tree_beam=3)
    request = begun(model, view(text(21), 0, SAMPLED))
    for n_accepted, follows_draft in steps:
        draft = model.propose(request, 64)
        chain = _first_path(draft)
        committed = chain[:n_accepted] if follows_draft else []
        committed = [*committed, (len(request.context) * 7 + n_accepted) % VOCAB]
        request.context.extend(committed)
        model.observe(request, Outcome(committed, compose(draft, 64)))
        fresh = draft_model(tree_nodes=tree_nodes, tree_beam=3)
        now = request.context.view.tolist()
        alone = RequestView.of(0, Request(now[: request.n_prompt], SAMPLED, emitted=now[request.n_prompt :]), VOCAB)
        assert _same(model.propose(request, 64), fresh.propose(begun(fresh, alone), 64))
    model.end(request)
    check_integrity(model, 0)


def _first_path(branches: Sequence[Branch]) -> list[int]:
    tree = compose(branches, 64)
    path, node = [], ROOT
    while tree.children[node + 1]:
        node = tree.children[node + 1][0]
        path.append(tree.tokens[node])
    return path


def _same(one: Sequence[Branch], other: Sequence[Branch]) -> bool:
    return [(list(b.tokens), b.parents and list(b.parents)) for b in one] == [
        (list(b.tokens), b.parents and list(b.parents)) for b in other
    ]


@pytest.mark.parametrize("tree_nodes", [0, 12])
def test_requests_drafted_together_get_what_they_get_alone(tree_nodes: int) -> None:
    together = draft_model(tree_nodes=tree_nodes)
    names = list(SETTINGS)
    requests = [begun(together, view(text(15 + 11 * i, i), i, SETTINGS[name])) for i, name in enumerate(names)]
    budgets = [64, 3, 1, 64, 2, 64]
    before = together.drafter.n_forwards
    drafts = together.propose_batch(requests, budgets)
    assert together.drafter.n_forwards - before == 5  # one per depth, for all of them
    for i, draft in enumerate(drafts):
        alone = draft_model(tree_nodes=tree_nodes)
        request = begun(alone, view(text(15 + 11 * i, i), i, SETTINGS[names[i]]))
        assert _same(draft, alone.propose(request, budgets[i]))


def test_a_chain_costs_one_row_per_depth_once_the_cache_is_warm() -> None:
    model = draft_model()
    rows = _watch(model)
    request = begun(model, view(text(100)))
    draft = tokens_of(model.propose(request, 64))
    assert rows == [100, 1, 1, 1, 1]
    request.context.extend([*draft[:2], (draft[2] + 1) % VOCAB])
    rows.clear()
    model.propose(request, 64)
    assert rows == [1, 1, 1, 1, 1], "accepted tokens are in the cache already: the bonus token alone is new"
    request.context.extend([*tokens_of(model.propose(request, 64)), 5])
    rows.clear()
    model.propose(request, 64)
    assert rows == [2, 1, 1, 1, 1], "the last drafted token was never scored"


def _watch(model: DraftModel) -> list[int]:
    rows: list[int] = []
    forward = model.drafter.forward

    def watched(parts: Sequence[Rows]) -> torch.Tensor:
        rows.append(sum(len(part.tokens) + (len(part.tree) if part.tree is not None else 0) for part in parts))
        return forward(parts)

    model.drafter.forward = watched  # type: ignore[method-assign]
    return rows


def test_a_long_text_is_read_in_chunks_and_no_request_waits_for_it() -> None:
    model = draft_model(prefill_chunk=50)
    rows = _watch(model)
    short, long, later = view(text(20), 0), view(text(220, 1), 1), view(text(60, 2), 2)
    for request in (short, long, later):
        model.begin(request)
    drafted: list[list[int]] = []
    for _ in range(8):
        rows.clear()
        drafts = model.propose_batch([short, long, later], [64] * 3)
        drafted.append([len(tokens_of(draft)) for draft in drafts])
        assert max(rows) <= 50 + 3 * 6
    assert drafted[0] == [5, 0, 0]
    assert all(counts[0] == 5 for counts in drafted), "a request that is up to date drafts in every step"
    assert drafted[-1] == [5, 5, 5]
    assert tokens_of(model.propose(long, 64)) == written(text(220, 1), GREEDY, 5)


def test_the_drafter_reads_a_prompt_while_the_target_does() -> None:
    model = draft_model(prefill_chunk=50)
    rows = _watch(model)
    request = begun(model, view(text(170)))
    for start in (0, 60, 120):
        model.observe(request, Outcome((), EMPTY_TREE, prompt_start=start))
    assert rows == [50, 50, 50]
    request.context.extend([7])
    model.observe(request, Outcome([7], EMPTY_TREE, prompt_start=120))
    assert tokens_of(model.propose(request, 64)) == written([*text(170), 7], GREEDY, 5, 170)
    assert rows == [50, 50, 50, 21, 1, 1, 1, 1]


def test_without_memory_a_request_goes_without_drafts_until_there_is_some() -> None:
    model = draft_model(n_blocks=10, block_size=8)
    first, second = begun(model, view(text(40), 0)), begun(model, view(text(40, 1), 1))
    drafts = model.propose_batch([first, second], [64, 64])
    assert [len(tokens_of(draft)) for draft in drafts] == [5, 0]
    check_integrity(model, 2)
    assert model.drafter.blocks.owners == {0}
    model.end(first)
    assert tokens_of(model.propose(second, 64)) == written(text(40, 1), GREEDY, 5)
    model.end(second)
    check_integrity(model, 0)


def test_a_text_that_outgrows_the_drafter_gives_its_room_back() -> None:
    model = draft_model(longest=60)
    request = begun(model, view(text(54)))
    assert len(tokens_of(model.propose(request, 64))) == 5
    request.context.extend([3, 4])
    assert model.propose(request, 64) == []
    assert model.drafter.blocks.n_free == model.drafter.blocks.n_blocks
    check_integrity(model, 1)


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["begin", "begin", "step", "step", "step", "read", "end", "again"]), st.integers(0, 5)),
    min_size=12,
    max_size=40,
)


@settings(max_examples=20, deadline=None)
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


def test_a_failed_forward_costs_drafts_and_leaves_nothing_wrong_behind() -> None:
    model = draft_model()
    isolated = FaultIsolated(model)
    requests = [view(text(30, i), i) for i in range(2)]
    for request in requests:
        isolated.begin(request)
    forward = model.drafter.forward
    calls = 0

    def failing(parts: Sequence[Rows]) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise RuntimeError("no kernel")
        return forward(parts)

    model.drafter.forward = failing  # type: ignore[method-assign]
    drafts = isolated.propose_batch(requests, [64, 64])  # fails together, then goes through one by one
    for request, draft in zip(requests, drafts, strict=True):
        assert tokens_of(draft) == written(text(30, request.request_id), GREEDY, 5)
        isolated.end(request)
    check_integrity(model, 0)


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
