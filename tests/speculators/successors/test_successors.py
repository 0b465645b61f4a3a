"""The mixed model as a speculator: drafts, learning, noise, shared state, and bounds of memory."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.composer import compose
from engine.protocol import Needs, Outcome
from engine.sampling.noise import gumbel_row
from engine.top_ids import TopIds
from engine.tree import EMPTY_TREE, ROOT
from speculators.successors.config import TARGET, TEXT, SuccessorConfig
from speculators.successors.learning import learn_prompt, learn_step
from speculators.successors.models import MOST_IDLE
from speculators.successors.speculator import Successors
from speculators.testing import HashTarget
from tests.speculators.drafts import observe_prompt, tokens_of
from tests.speculators.successors.successor_runs import (
    BOTH,
    HALVES,
    PROMPT,
    SMALL,
    SuccessorRun,
    decode,
    knowledge,
    view,
)

SEQUENCES = HashTarget(48, n_successors=2)


@pytest.mark.parametrize("sources", [*HALVES, (TARGET, TEXT)])
def test_drafts_are_well_formed_and_the_text_equals_plain_decoding(sources):
    speculator = Successors(SMALL, sources)
    run = decode(speculator, SEQUENCES, view(PROMPT), 40)
    assert len(run.output) > 50
    unadapted = Successors(replace(SMALL, adapt=0.0), sources)
    assert decode(unadapted, SEQUENCES, view(PROMPT), 40).drafts != run.drafts
    for (branch,) in filter(None, run.drafts):
        assert len(branch.tokens) == len(branch.parents) == len(branch.scores) <= 24
        assert branch.source == speculator.name
        assert all(0.0 < score <= 1.0 for score in branch.scores)
        assert all(ROOT <= parent < node for node, parent in enumerate(branch.parents))
        assert len(set(zip(branch.parents, branch.tokens, strict=True))) == len(branch.tokens)
        if len(sources) == 1:
            assert branch.proposers is None
        else:
            assert len(branch.proposers) == len(branch.tokens)
            assert set(branch.proposers) <= {(TEXT,), (TARGET,), BOTH, BOTH[::-1]}


def test_only_the_target_source_needs_ids_and_only_it_learns_from_them():
    assert Successors(SMALL, (TEXT,)).needs == Needs()
    needs = Needs(node_top_k=16, prompt_top_k=16, top_logprobs=True)
    assert Successors(SMALL, (TARGET,)).needs == Successors(SMALL, BOTH).needs == needs
    runs = [SuccessorRun(Successors(SMALL, (TEXT,)), SEQUENCES, view(PROMPT)) for _ in range(2)]
    observe = runs[1].speculator.observe  # in a combination every part gets the target's ids
    runs[1].speculator.observe = lambda request, one: observe(request, Outcome(one.tokens, one.tree, one.accepted))
    for run in runs * 12:
        run.step()
    assert runs[0].drafts == runs[1].drafts


@pytest.mark.parametrize("sources", HALVES)
@pytest.mark.parametrize("prompt", [[], [7]])
def test_the_shortest_prompts_are_drafted_for(sources, prompt):
    speculator, request = Successors(SMALL, sources), view(prompt)
    speculator.begin(request)
    assert speculator.propose(request, 8) == []
    for token in (7, 7, 7, 7):
        request.context.extend([token])
        speculator.observe(request, Outcome([token], EMPTY_TREE))
    assert (tokens_of(speculator.propose(request, 8)) != []) == (TEXT in sources)


def test_requests_of_any_vocabulary_share_a_speculator():
    speculator = Successors(SMALL, BOTH)
    runs = []
    for number, vocab in enumerate((48, 32_000, 262_144)):
        prompt = PROMPT if vocab == 48 else [vocab - 1, 0, vocab - 2, vocab - 1, 0]
        runs.append(SuccessorRun(speculator, HashTarget(vocab, 2), view(prompt, number, vocab)))
    for _ in range(8):
        for run in runs:
            run.step()
    assert all(run.output and tokens_of(run.drafts[-1]) for run in runs)
    assert runs[0].drafts == decode(Successors(SMALL, BOTH), SEQUENCES, view(PROMPT), 8).drafts


@pytest.mark.parametrize("sources", HALVES)
def test_budgets_are_kept_and_a_larger_one_only_adds(sources):
    target = HashTarget(48, n_successors=3)
    speculator = Successors(SuccessorConfig(least=0.0), sources)
    run = SuccessorRun(speculator, target, view([*PROMPT, *target.generate(PROMPT, 100)]))
    budgets = (0, 1, 7, 64, 65, 200, 64, 3)
    found = [tokens_of(speculator.propose(run.request, budget)) for budget in budgets]
    assert all(len(tokens) <= budget for tokens, budget in zip(found, budgets, strict=True))
    assert all(tokens == found[5][: len(tokens)] for tokens in found)
    assert len(found[1]) == 1
    assert len(found[5]) == 200 or TARGET not in sources


@settings(max_examples=15)
@given(st.lists(st.integers(0, 3), min_size=4, max_size=40), st.sampled_from([{}, {"temperature": 0.8, "seed": 4}]))
def test_live_requests_do_not_affect_one_another(order, params):
    """All models of a speculator share scratch memory."""
    target = HashTarget(48, n_successors=3)
    together = Successors(SMALL, BOTH)
    prompts = [[i, 2 * i, 7, i, 2 * i] for i in range(4)]
    runs = [SuccessorRun(together, target, view(prompt, i, **params)) for i, prompt in enumerate(prompts)]
    for i in order:
        runs[i].step()
    for i, run in enumerate(runs):
        alone = SuccessorRun(Successors(SMALL, BOTH), target, view(prompts[i], i, **params))
        for _ in run.drafts:
            alone.step()
        assert alone.drafts == run.drafts


@given(st.lists(st.integers(1, 30), min_size=1, max_size=4))
def test_prompt_chunks_of_any_size_give_the_same_tables(sizes):
    """Recent tokens may differ: they come from the last positions of every chunk."""
    target, found = HashTarget(48, n_successors=3), []
    prompt = [*PROMPT, *target.generate(PROMPT, 40)]
    for ends in ([], np.cumsum(sizes).tolist()):
        speculator = Successors(SuccessorConfig(target_rows=4096, text_rows=4096), BOTH)
        request = view(prompt)
        speculator.begin(request)
        observe_prompt(speculator, request, target, ends)
        found.append(knowledge(speculator.states[0].addressed.model))
    assert found[0] == found[1]


@pytest.mark.parametrize(("window", "learnt"), [(0, False), (3, False), (6, True), (100, True)])
def test_only_the_last_tokens_of_a_long_prompt_are_counted(window, learnt):
    speculator, request = Successors(replace(SMALL, prompt_window=window), (TEXT,)), view([1, 2, 3, 4, 5, 6, 1])
    speculator.begin(request)
    assert (tokens_of(speculator.propose(request, 4))[:1] == [2]) == learnt


def test_ids_without_probabilities_are_not_learnt():
    speculator, request = Successors(SMALL, BOTH), view(PROMPT)
    speculator.begin(request)
    observe_prompt(speculator, request, SEQUENCES, logprobs=False)
    assert not speculator.states[0].addressed.model.target.keys.any()


def read_only(array):
    return None if array is None else np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)


def test_read_only_arrays_give_the_same_drafts_and_compile_nothing_new():
    local = decode(Successors(SMALL, BOTH), SEQUENCES, view(PROMPT), 5)
    known = {function: len(function.signatures) for function in (learn_prompt, learn_step)}
    remote = Successors(SMALL, BOTH)
    observe = remote.observe

    def receive(request, outcome):
        top = TopIds.of(outcome.top_ids)
        sent = {name: read_only(getattr(outcome, name)) for name in ("prompt_top_ids", "prompt_top_logprobs")}
        if len(top):
            sent["top_ids"] = TopIds(*map(read_only, (top.nodes, top.ids, top.logprobs)))
        observe(request, msgspec.structs.replace(outcome, **sent))

    remote.observe = receive
    assert decode(remote, SEQUENCES, view(PROMPT), 5).drafts == local.drafts
    assert known == {function: len(function.signatures) for function in known}


def after_prompt(sources, **params):
    """Return the draft after a prompt and its continuation."""
    request = view([*PROMPT, *SEQUENCES.generate(PROMPT, 60)], **params)
    run = SuccessorRun(Successors(replace(SMALL, text_width=8), sources), SEQUENCES, request)
    return run.speculator.propose(run.request, 24)


@pytest.mark.parametrize("sources", HALVES)
def test_drafts_depend_only_on_the_noise_of_coupled_sampling(sources):
    """Drafts for rejection sampling must not depend on the seed or choice by which the target draws."""
    keys = [{"seed": 1}, {"seed": 2}, {"seed": 1, "choice": 3}]
    rejected = [after_prompt(sources, temperature=0.8, verification="rejection", **key) for key in keys]
    assert rejected[0] == rejected[1] == rejected[2] != []
    coupled = [after_prompt(sources, temperature=0.8, **key) for key in keys]
    assert coupled[0] != coupled[1] != coupled[2] != coupled[0]
    assert coupled[0] == after_prompt(sources, temperature=0.8, seed=1)
    assert after_prompt(sources, seed=1) == after_prompt(sources, seed=2), "greedy decoding has no noise"


@pytest.mark.parametrize("temperature", [0.02, 0.8, 1.3])
def test_the_first_node_is_the_coupled_draw_if_the_distribution_is_known(temperature):
    rng, k = np.random.default_rng(3), 16
    for seed in range(20):
        speculator = Successors(replace(SMALL, target_orders=(1,)), (TARGET,))
        request = view([1, 2, 3], vocab_size=k, temperature=temperature, seed=seed)
        speculator.begin(request)
        p = rng.dirichlet(np.full(k, 0.7)).astype(np.float32)
        ids = np.argsort(-p).astype(np.int32)
        logprobs = np.log(p[ids])[None]
        outcome = Outcome([], EMPTY_TREE, prompt_top_ids=ids[None], prompt_top_logprobs=logprobs, prompt_start=2)
        speculator.observe(request, outcome)
        drawn = int((np.log(p.astype(np.float64)) / temperature + gumbel_row((seed, 0, 3), k)).argmax())
        assert tokens_of(speculator.propose(request, 8))[0] == drawn


@pytest.mark.parametrize("temperature", [1e-3, 0.1, 100.0])
@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_extreme_temperatures_keep_text_and_drafts(temperature, verification):
    request = view(PROMPT * 2, temperature=temperature, seed=5, verification=verification)
    run = decode(Successors(SMALL, BOTH), SEQUENCES, request, 8)
    assert run.output
    if temperature <= 0.1:  # nearly greedy: the best guess is almost certain
        assert all(tokens_of(branches) for branches in run.drafts)
        assert len(run.output) > 1 + len(run.drafts)


SHARED = SuccessorConfig(shared=True, target_rows=2048, text_rows=2048)


@pytest.mark.parametrize("sources", HALVES)
def test_models_of_finished_requests_are_reused_empty(sources):
    speculator, models = Successors(SMALL, sources), set()
    for number in range(4):
        prompt = [*PROMPT, number, 3 * number]
        run = SuccessorRun(speculator, SEQUENCES, view(prompt, number))
        models.add(id(speculator.states[number].addressed))
        for _ in range(10):
            run.step()
        speculator.end(run.request)
        assert run.drafts == decode(Successors(SMALL, sources), SEQUENCES, view(prompt)).drafts
    assert len(models) == 1
    many = [view(PROMPT, number) for number in range(3 * MOST_IDLE)]
    for call in (speculator.begin, speculator.end):
        for request in many:
            call(request)
    assert [len(idle) for idle in speculator._models._idle.values()] == [MOST_IDLE]


def n_bytes(part):
    if isinstance(part, tuple):
        return sum(map(n_bytes, part))
    return part.nbytes if isinstance(part, np.ndarray) else 0


def test_memory_is_bounded_as_documented_and_does_not_grow_with_the_text():
    models = Successors(SuccessorConfig(), BOTH)._models
    model, short = models.new(1_000_000), models.new(50)
    assert n_bytes(model.target) < 1.01 * 32768 * 144
    assert n_bytes(model.text) < 1.01 * 32768 * 48
    assert n_bytes(short.text) < 0.1 * n_bytes(model.text)
    assert n_bytes(short.target) < 0.6 * n_bytes(model.target)
    speculator = Successors(replace(SMALL, shared=True), BOTH)
    run = SuccessorRun(speculator, HashTarget(40_000, n_successors=9), view(PROMPT, vocab_size=40_000), budget=8)
    small = speculator.states[0].addressed.model
    before = n_bytes(small)
    for _ in range(300):
        run.step()
    assert (small.text.keys != 0).all()
    assert n_bytes(small) == before
    assert speculator.states[0].addressed.model is small


@settings(max_examples=12)
@given(st.integers(0, 999), st.sampled_from(HALVES))
def test_tokens_of_one_scope_never_reach_another(seed, sources):
    """The tokens of the two scopes are disjoint."""
    speculator = Successors(replace(SMALL, shared=True), sources)
    rng = np.random.default_rng(seed)
    for request_id, scope in enumerate(rng.integers(0, 2, 8).tolist()):
        own = np.arange(20) + 20 * scope
        request = view(rng.choice(own, 12).tolist(), request_id, 40, scope=str(scope))
        speculator.begin(request)
        for _ in range(4):
            branches = speculator.propose(request, 16)
            assert set(tokens_of(branches)) <= set(own.tolist())
            tree = compose(branches, 16)
            ids = np.array([rng.choice(own, 16, replace=False) for _ in range(len(tree) + 1)], np.int32)
            top = TopIds(np.arange(-1, len(tree), dtype=np.int32), ids, np.full(ids.shape, np.log(1 / 20), np.float32))
            token = int(rng.choice(own))
            request.context.extend([token])
            speculator.observe(request, Outcome([token], tree, (), top))
        speculator.end(request)


@pytest.mark.parametrize("sources", HALVES)
@pytest.mark.parametrize("prompts", [0, 2])
def test_a_request_starts_with_the_tables_of_its_scope_or_of_its_prompt(sources, prompts):
    speculator = Successors(replace(SHARED, prompts=prompts), sources)

    def run(prompt, scope):
        return decode(speculator, SEQUENCES, view(prompt, scope=scope), 15)

    cold = run(PROMPT, "a")
    assert len(run(PROMPT, "a").output) > len(cold.output)
    assert run(PROMPT, "b").drafts == cold.drafts
    if prompts:  # other prompts start without a model, and two prompts of each scope are kept
        other, *more = ([*PROMPT[:-1], last] for last in (40, 41, 42))
        alone = decode(Successors(replace(SHARED, shared=False), sources), SEQUENCES, view(other), 15)
        assert run(other, "a").drafts == alone.drafts
        for prompt in more:
            run(prompt, "a")
        assert {scope: len(kept) for scope, kept in speculator._models._shared.items()} == {"a": 2, "b": 1}
        assert run(PROMPT, "a").drafts == cold.drafts
