"""The mixed model as a speculator: what it learns, from whom, and what it may know of the draw."""

import gc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.composer import compose
from engine.errors import ConfigError
from engine.protocol import Needs, Outcome, RequestView
from engine.request import Request
from engine.sampling.noise import gumbel_row
from engine.sampling.params import SamplingParams
from engine.top_ids import TopIds
from engine.tree import EMPTY_TREE, ROOT
from speculators.ngrams.suffix import SuffixConfig
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions, create
from speculators.successors.learning import learn_prompt, learn_tree
from speculators.successors.speculator import TARGET, TEXT, SuccessorConfig, Successors
from speculators.successors.table import NONE
from speculators.successors.token_recycling import TokenRecyclingConfig
from speculators.testing import HashTarget

BOTH = (TEXT, TARGET)
HALVES = [(TEXT,), (TARGET,), BOTH]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
SMALL = SuccessorConfig(target_rows=512, text_rows=512)


def view(prompt, request_id=0, vocab_size=48, scope="", **params):
    return RequestView.of(request_id, Request(prompt, SamplingParams(**params), scope=scope), vocab_size)


class Decoding:
    """One request, a step at a time."""

    def __init__(self, speculator, target, request, budget=24):
        self.speculator, self.target, self.request, self.budget = speculator, target, request, budget
        speculator.begin(request)
        self.drafts = []
        self._commit(target.read_prompt(request.context.view.tolist()))

    def step(self):
        branches = self.speculator.propose(self.request, self.budget)
        self.drafts.append(branches)
        context = self.request.context.view.tolist()
        self._commit(self.target.score(context, compose(branches, self.budget)))

    def _commit(self, outcome):
        self.request.context.extend(outcome.tokens)
        self.speculator.observe(self.request, outcome)

    @property
    def output(self):
        return self.request.context.view[self.request.n_prompt :].tolist()


def decode(speculator, target, request, n_steps=10, budget=24):
    run = Decoding(speculator, target, request, budget)
    for _ in range(n_steps):
        run.step()
    speculator.end(request)
    return run


def nodes(branches):
    return [token for branch in branches for token in branch.tokens]


@pytest.mark.parametrize("sources", [*HALVES, (TARGET, TEXT)])
def test_drafts_are_well_formed_and_the_text_is_the_plain_one(sources):
    target = HashTarget(48, n_successors=2)
    speculator = Successors(SMALL, sources)
    run = decode(speculator, target, view(PROMPT), 40)
    assert run.output == target.generate(PROMPT, len(run.output))
    assert len(run.output) > 50
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


def test_the_better_half_is_named_first():
    speculator = Successors(replace(SMALL, text_orders=(1,), target_orders=(1,), adapt=0.0), BOTH)
    request = view([1, 2, 1, 2, 1])
    speculator.begin(request)
    top = np.array([[2, 7, 8]] * 5, np.int32)
    speculator.observe(
        request,
        Outcome([], EMPTY_TREE, prompt_top_ids=top, prompt_top_logprobs=np.log(np.full((5, 3), 0.3, np.float32))),
    )
    (branch,) = speculator.propose(request, 8)
    first = dict(zip(zip(branch.parents, branch.tokens, strict=True), branch.proposers, strict=True))
    assert first[ROOT, 2] == BOTH  # counts say 2 at 0.28, the target 0.44 x 0.3 of what is left
    assert first[ROOT, 7] == first[ROOT, 8] == (TARGET,)


def test_only_the_target_half_wants_something_read_back():
    assert Successors(SMALL, (TEXT,)).needs == Needs()
    wanted = Needs(node_top_k=16, prompt_top_k=16, top_logprobs=True)
    assert Successors(SMALL, (TARGET,)).needs == Successors(SMALL, BOTH).needs == wanted


def test_the_registry_makes_one_model_of_both_names_and_papers_of_none():
    assert isinstance(create("suffix+token-recycling"), Successors)
    assert create("token-recycling+suffix").name == "token-recycling+suffix"
    assert [part.name for part in create("pld+token-recycling+suffix")._parts] == ["pld", "token-recycling+suffix"]
    paper = SpeculatorOptions(suffix=SuffixConfig(mode="paper"))
    assert [part.name for part in create("suffix+token-recycling", paper)._parts] == ["suffix", "token-recycling"]
    for mode in ({"suffix": SuffixConfig(mode="paper")}, {"token_recycling": TokenRecyclingConfig(mode="paper")}):
        (name,) = (key.replace("_", "-") for key in mode)
        assert not isinstance(create(name, SpeculatorOptions(**mode)), Successors)
        assert isinstance(create(name), Successors)


def test_what_others_read_back_does_not_reach_the_text_half():
    """In a combination the target's ids come to every part."""
    target = HashTarget(48, n_successors=2)
    alone = decode(Successors(SMALL, (TEXT,)), target, view(PROMPT), 12)
    deaf = Successors(SMALL, (TEXT,))
    observe = deaf.observe
    deaf.observe = lambda request, outcome: observe(request, Outcome(outcome.tokens, outcome.tree, outcome.accepted))
    assert decode(deaf, target, view(PROMPT), 12).drafts == alone.drafts


@pytest.mark.parametrize("sources", HALVES)
@pytest.mark.parametrize("prompt", [[], [7]])
def test_the_shortest_prompts_do_no_harm(sources, prompt):
    speculator = Successors(SMALL, sources)
    request = view(prompt)
    speculator.begin(request)
    assert speculator.propose(request, 8) == []
    for token in (7, 7, 7, 7):
        request.context.extend([token])
        speculator.observe(request, Outcome([token], EMPTY_TREE))
    assert (nodes(speculator.propose(request, 8)) != []) == (TEXT in sources)


@pytest.mark.parametrize("vocab_size", [48, 32_000, 262_144])
def test_every_vocabulary_fits(vocab_size):
    target = HashTarget(vocab_size, n_successors=2)
    prompt = [vocab_size - 1, 0, vocab_size - 2, vocab_size - 1, 0]
    run = decode(Successors(SMALL, BOTH), target, view(prompt, vocab_size=vocab_size), 6)
    assert run.output == target.generate(prompt, len(run.output))
    assert nodes(run.drafts[-1])


def test_a_larger_vocabulary_may_come_later():
    speculator = Successors(SMALL, BOTH)
    small, large = HashTarget(48, 2), HashTarget(90_000, 2)
    first = Decoding(speculator, small, view(PROMPT, 0))
    second = Decoding(speculator, large, view([89_999, 5, 89_999, 5], 1, 90_000))
    for _ in range(8):
        first.step()
        second.step()
    assert first.output == small.generate(PROMPT, len(first.output))
    assert first.drafts == decode(Successors(SMALL, BOTH), small, view(PROMPT), 8).drafts


@pytest.mark.parametrize("sources", HALVES)
def test_budgets_are_kept_and_may_grow(sources):
    target = HashTarget(48, n_successors=3)
    speculator = Successors(SuccessorConfig(least=0.0), sources)
    run = Decoding(speculator, target, view([*PROMPT, *target.generate(PROMPT, 100)]))
    sizes = [len(nodes(speculator.propose(run.request, budget))) for budget in (0, 1, 7, 64, 65, 200, 64, 3)]
    assert all(size <= budget for size, budget in zip(sizes, (0, 1, 7, 64, 65, 200, 64, 3), strict=True))
    assert sizes[1] == 1
    if TARGET in sources:
        assert sizes[5] == 200


def test_a_larger_budget_only_adds():
    target = HashTarget(48, n_successors=3)
    run = Decoding(Successors(SuccessorConfig(), BOTH), target, view(PROMPT))
    for _ in range(6):
        run.step()
    few, many = (run.speculator.propose(run.request, budget)[0] for budget in (10, 150))
    assert (few.tokens, few.parents, few.scores) == (many.tokens[:10], many.parents[:10], many.scores[:10])


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=4, max_size=40), st.sampled_from([{}, {"temperature": 0.8, "seed": 4}]))
def test_live_requests_do_not_disturb_one_another(order, params):
    """All models of a speculator share scratch space."""
    target = HashTarget(48, n_successors=3)
    together = Successors(SMALL, BOTH)
    prompts = [[i, 2 * i, 7, i, 2 * i] for i in range(4)]
    runs = [Decoding(together, target, view(prompt, i, **params)) for i, prompt in enumerate(prompts)]
    for i in order:
        runs[i].step()
    for i, run in enumerate(runs):
        alone = Decoding(Successors(SMALL, BOTH), target, view(prompts[i], i, **params))
        for _ in run.drafts:
            alone.step()
        assert alone.drafts == run.drafts


# Memory.


@pytest.mark.parametrize("sources", HALVES)
def test_nothing_of_a_request_is_left_and_the_next_one_starts_cold(sources):
    target = HashTarget(48, n_successors=2)
    speculator = Successors(SMALL, sources)
    first = decode(speculator, target, view(PROMPT))
    assert (speculator._states, speculator._shared) == ({}, {})
    assert decode(speculator, target, view(PROMPT)).drafts == first.drafts
    speculator.end(view(PROMPT, 99))  # never begun: harmless


def arrays(model):
    return [array for part in model for array in (part if isinstance(part, tuple) else (part,))]


def test_memory_is_bounded_as_documented():
    speculator = Successors(SuccessorConfig(), BOTH)
    model = speculator._new_model(1000, 1_000_000)
    assert sum(array.nbytes for array in model.target) < 1.01 * 32768 * 140
    assert sum(array.nbytes for array in model.text) < 1.01 * 32768 * 44
    short = speculator._new_model(1000, 50)
    assert sum(array.nbytes for array in short.text) < 0.1 * sum(array.nbytes for array in model.text)
    assert sum(array.nbytes for array in short.target) < 0.6 * sum(array.nbytes for array in model.target)


def test_a_long_text_needs_no_more_memory_than_a_short_one():
    target = HashTarget(40_000, n_successors=9)
    speculator = Successors(replace(SMALL, shared=True), BOTH)
    run = Decoding(speculator, target, view(PROMPT, vocab_size=40_000), budget=8)
    model = speculator._states[0].model
    before = sum(array.nbytes for array in arrays(model))
    for _ in range(300):
        run.step()
    assert (model.text.keys != 0).all()
    assert sum(array.nbytes for array in arrays(model)) == before
    assert speculator._states[0].model is model


def test_ended_requests_are_not_held_by_anything():
    target = HashTarget(48, n_successors=2)
    speculator = Successors(SMALL, BOTH)
    for i in range(30):
        decode(speculator, target, view(PROMPT, i), 2)
    gc.collect()
    held = [
        o
        for o in gc.get_objects()
        if type(o).__name__ == "Model" and getattr(o, "mark", None) is speculator._scratch[0]
    ]
    assert held == []


# What requests of one scope may learn from each other.


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 999), st.sampled_from(HALVES))
def test_what_one_scope_learns_never_reaches_another(seed, sources):
    """Namespaces write with disjoint tokens, so a foreign one betrays itself."""
    speculator = Successors(replace(SMALL, shared=True), sources)
    rng = np.random.default_rng(seed)
    homes = {"a": range(20), "b": range(20, 40)}
    for request_id, name in enumerate(rng.choice(["a", "b"], 8).tolist()):
        home = list(homes[name])
        request = view(rng.choice(home, 12).tolist(), request_id, 40, name)
        speculator.begin(request)
        for _ in range(4):
            branches = speculator.propose(request, 16)
            assert set(nodes(branches)) <= set(home)
            tree = compose(branches, 16)
            ids = np.array([rng.choice(home, 16, replace=False) for _ in range(len(tree) + 1)], np.int32)
            top = TopIds(np.arange(-1, len(tree), dtype=np.int32), ids, np.full(ids.shape, np.log(1 / 20), np.float32))
            token = int(rng.choice(home))
            request.context.extend([token])
            speculator.observe(request, Outcome([token], tree, (), top))
        speculator.end(request)


@pytest.mark.parametrize("sources", HALVES)
def test_a_warm_request_starts_with_what_its_scope_knows(sources):
    target = HashTarget(48, n_successors=2)
    speculator = Successors(SuccessorConfig(shared=True), sources)
    cold = decode(speculator, target, view(PROMPT, 0, scope="a"), 15)
    warm = decode(speculator, target, view(PROMPT, 1, scope="a"), 15)
    other = decode(speculator, target, view(PROMPT, 2, scope="b"), 15)
    assert len(warm.output) > len(cold.output)
    assert other.drafts == cold.drafts
    assert set(speculator._shared) == {"a", "b"}


# The noise.


def after_prompt(sources=BOTH, **params):
    """The draft behind a prompt that its continuation makes repeat itself."""
    target = HashTarget(48, n_successors=2)
    request = view([*PROMPT, *target.generate(PROMPT, 60)], **params)
    run = Decoding(Successors(replace(SMALL, text_width=8), sources), target, request)
    return run.speculator.propose(run.request, 24)


@pytest.mark.parametrize("sources", HALVES)
def test_rejection_sampling_must_not_know_the_noise(sources):
    """Its drafts must not depend on what the target's draw depends on: the seed, the choice."""
    drafts = [
        after_prompt(sources, temperature=0.8, verification="rejection", **key)
        for key in ({"seed": 1}, {"seed": 2}, {"seed": 1, "choice": 3})
    ]
    assert drafts[0] == drafts[1] == drafts[2] != []


@pytest.mark.parametrize("sources", HALVES)
def test_coupled_sampling_knows_it_and_greedy_has_none(sources):
    keys = [{"seed": 1}, {"seed": 2}, {"seed": 1, "choice": 1}]
    drafts = [after_prompt(sources, temperature=0.8, **key) for key in keys]
    assert drafts[0] != drafts[1] != drafts[2] != drafts[0]
    assert drafts[0] == after_prompt(sources, temperature=0.8, seed=1)
    assert after_prompt(sources, seed=1) == after_prompt(sources, seed=2)


@pytest.mark.parametrize("temperature", [0.02, 0.8, 1.3])
def test_the_first_guess_is_the_coupled_draw_where_the_target_is_known(temperature):
    """Behind a context whose whole distribution was read back, the drafter draws as the target will."""
    rng = np.random.default_rng(3)
    k, n_right = 16, 0
    for seed in range(40):
        speculator = Successors(replace(SMALL, target_orders=(1,)), (TARGET,))
        request = view([1, 2, 3], vocab_size=k, temperature=temperature, seed=seed)
        speculator.begin(request)
        p = rng.dirichlet(np.full(k, 0.7)).astype(np.float32)
        ids = np.argsort(-p).astype(np.int32)
        logprobs = np.log(p[ids])[None]
        outcome = Outcome([], EMPTY_TREE, prompt_top_ids=ids[None], prompt_top_logprobs=logprobs, prompt_start=2)
        speculator.observe(request, outcome)
        drawn = int((np.log(p.astype(np.float64)) / temperature + gumbel_row((seed, 0, 3), k)).argmax())
        (branch,) = speculator.propose(request, 8)
        n_right += branch.tokens[0] == drawn
    assert n_right == 40


@pytest.mark.parametrize("temperature", [1e-3, 0.01, 0.1, 5.0, 100.0])
@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_extreme_temperatures_do_not_break_it(temperature, verification):
    target = HashTarget(48, n_successors=2)
    request = view(PROMPT * 2, temperature=temperature, seed=5, verification=verification)
    run = decode(Successors(SMALL, BOTH), target, request, 8)
    assert run.output == target.generate(PROMPT * 2, len(run.output))
    if temperature <= 0.1:  # all but greedy: the best guess is a sure one
        assert all(nodes(branches) for branches in run.drafts)
        assert len(run.output) > 1 + len(run.drafts)


# Learning.


def read(model):
    """Everything a model knows but its recent tokens."""
    tables = []
    for table in (model.text, model.target):
        used = np.flatnonzero(table.keys)
        ids = table.ids[used]
        n = np.where((ids == NONE).any(1), (ids == NONE).argmax(1), ids.shape[1]).tolist()
        rows = zip(table.keys[used].tolist(), ids.tolist(), table.weights[used].tolist(), n, strict=True)
        tables.append({key: list(zip(i[:m], w[:m], strict=True)) for key, i, w, m in rows})
    return tables, model.text_trust.tolist(), model.target_trust.tolist()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=4))
def test_prompt_chunks_of_any_size_teach_the_same(sizes):
    """But for recent tokens: of every chunk, the last positions count."""
    target = HashTarget(48, n_successors=3)
    prompt = [*PROMPT, *target.generate(PROMPT, 40)]
    whole = target.read_prompt(prompt)
    config = SuccessorConfig(target_rows=4096, text_rows=4096)
    found = []
    for cuts in ([], sizes):
        speculator, request = Successors(config, BOTH), view(prompt)
        speculator.begin(request)
        ends = [end for end in np.cumsum(cuts).tolist() if end < len(prompt)] + [len(prompt)]
        start = 0
        for end in ends:
            tokens = whole.tokens if end == len(prompt) else []
            request.context.extend(tokens)
            ids, logprobs = whole.prompt_top_ids[start:end], whole.prompt_top_logprobs[start:end]
            speculator.observe(
                request,
                Outcome(tokens, EMPTY_TREE, prompt_top_ids=ids, prompt_top_logprobs=logprobs, prompt_start=start),
            )
            start = end
        found.append(read(speculator._states[0].model))
    assert found[0] == found[1]


def test_only_the_last_tokens_of_a_long_prompt_are_counted():
    request = view([1, 2, 3, 4, 5, 6, 1])
    for window, learnt in ((0, False), (3, False), (6, True), (100, True)):
        speculator = Successors(replace(SMALL, prompt_window=window), (TEXT,))
        speculator.begin(request)
        assert (nodes(speculator.propose(request, 4))[:1] == [2]) == learnt


def test_a_failing_read_back_costs_nothing_but_itself():
    """Ids without their probabilities (another part's wish) teach nothing."""
    speculator = Successors(SMALL, BOTH)
    request = view(PROMPT)
    speculator.begin(request)
    request.context.extend([5])
    ids = np.zeros((len(PROMPT), 4), np.int32)
    speculator.observe(request, Outcome([5], EMPTY_TREE, prompt_top_ids=ids))
    assert not speculator._states[0].model.target.keys.any()


def over_the_wire(array):
    return np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)


def test_read_only_arrays_are_as_good_and_compile_nothing_new():
    target = HashTarget(48, n_successors=2)
    here = decode(Successors(SMALL, BOTH), target, view(PROMPT), 5)
    known = {function: len(function.signatures) for function in (learn_prompt, learn_tree)}
    there = Successors(SMALL, BOTH)
    observe = there.observe

    def receive(request, outcome):
        top = TopIds.of(outcome.top_ids)
        if len(top):
            outcome = replace(outcome, top_ids=TopIds(*map(over_the_wire, (top.nodes, top.ids, top.logprobs))))
        if outcome.prompt_top_ids is not None:
            ids, logprobs = over_the_wire(outcome.prompt_top_ids), over_the_wire(outcome.prompt_top_logprobs)
            outcome = replace(outcome, prompt_top_ids=ids, prompt_top_logprobs=logprobs)
        observe(request, outcome)

    there.observe = receive
    assert decode(there, target, view(PROMPT), 5).drafts == here.drafts
    assert known == {function: len(function.signatures) for function in known}


def test_the_pool_runs_all_three_under_sampling_parameters():
    pool = SpeculatorPool(SpeculatorOptions().warm())
    target = HashTarget(48, n_successors=2)
    prompt = [*PROMPT, *target.generate(PROMPT, 60)]
    for i, method in enumerate(("suffix", "token-recycling", "suffix+token-recycling")):
        pool.begin(i, Request(prompt, SamplingParams(temperature=0.7, seed=i), method, scope="a"), 48)
    drafts = pool.advance([(i, target.read_prompt(prompt)) for i in range(3)], dict.fromkeys(range(3), 9))
    assert all(0 < len(nodes(drafts[i])) <= 9 for i in range(3))


@pytest.mark.parametrize(
    "bad",
    [
        {"top_k": 0},
        {"text_width": 0},
        {"target_rows": 3},
        {"recent": 0},
        {"recent": 257},
        {"recent_decay": 1.1},
        {"adapt": -0.1},
        {"least": 2.0},
        {"target_orders": (2, 1)},
        {"text_orders": (0, 1)},
        {"text_orders": (1, 9)},
        {"prompt_window": -1},
    ],
)
def test_wrong_settings_are_named(bad):
    with pytest.raises(ConfigError, match=f"successors: {next(iter(bad))} must "):
        SuccessorConfig(**bad)
