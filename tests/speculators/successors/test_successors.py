"""The mixed model as a speculator: what it learns, and from whom."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.protocol import Needs, Outcome
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.top_ids import TopIds
from engine.tree import EMPTY_TREE, ROOT
from speculators.ngrams.suffix import SuffixConfig
from speculators.pool import SpeculatorPool
from speculators.registry import SpeculatorOptions, create
from speculators.successors.config import TARGET, TEXT, SuccessorConfig
from speculators.successors.learning import learn_prompt, learn_tree
from speculators.successors.speculator import Successors
from speculators.successors.table import NONE
from speculators.successors.token_recycling import TokenRecyclingConfig
from speculators.testing import HashTarget
from tests.support.successor_runs import BOTH, HALVES, PROMPT, SMALL, Decoding, decode, nodes, view


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


# Learning.


def read(model):
    """Everything a model knows but its recent tokens."""
    tables = []
    for table in (model.text, model.target):
        used = np.flatnonzero(table.keys)
        places = table.slots[used, 0]
        ids = table.ids[places]
        n = np.where((ids == NONE).any(1), (ids == NONE).argmax(1), ids.shape[1]).tolist()
        rows = zip(table.keys[used].tolist(), ids.tolist(), table.weights[places].tolist(), n, strict=True)
        tables.append({key: list(zip(i[:m], w[:m], strict=True)) for key, i, w, m in rows})
    return tables, model.trusts.text.tolist(), model.trusts.target.tolist()


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
        found.append(read(speculator._states[0].addressed.model))
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
    assert not speculator._states[0].addressed.model.target.keys.any()


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
            outcome = msgspec.structs.replace(
                outcome, top_ids=TopIds(*map(over_the_wire, (top.nodes, top.ids, top.logprobs)))
            )
        if outcome.prompt_top_ids is not None:
            ids, logprobs = over_the_wire(outcome.prompt_top_ids), over_the_wire(outcome.prompt_top_logprobs)
            outcome = msgspec.structs.replace(outcome, prompt_top_ids=ids, prompt_top_logprobs=logprobs)
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
