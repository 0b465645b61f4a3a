"""Learning and drafting for many requests in one call, compared with one request after another."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.composer import compose
from engine.protocol import BatchSpeculator, Outcome
from engine.top_ids import NO_TOP_IDS, TopIds
from engine.tree import EMPTY_TREE
from retrieval_store.index.index import FixedLibrary
from retrieval_store.index.memory import MemoryIndex
from speculators.mixing.fault_isolation import FaultIsolated
from speculators.successors.config import CORPUS, SOURCES, TARGET, TEXT
from speculators.successors.speculator import Successors
from speculators.testing import HashTarget
from tests.speculators.successors.successor_runs import BOTH, PROMPT, SMALL, knowledge, view

VOCAB = 48
TARGETS = [HashTarget(VOCAB, n_successors=2), HashTarget(VOCAB, n_successors=2, top_k=20)]
FULL, TEXT_ONLY, UNSCORED, NOTHING_READ, SOME_READ, WIDER, MISSED = range(7)  # what a request learns of a step
ALL_KINDS = [st.sampled_from([FULL] * 6 + [TEXT_ONLY, UNSCORED, NOTHING_READ, SOME_READ, WIDER, MISSED])] * 4
STEPS = st.lists(st.tuples(st.tuples(*ALL_KINDS), st.tuples(*[st.sampled_from([0, 1, 5, 24])] * 4)), max_size=12)
PARAMS = [{}, {"temperature": 0.8}, {"temperature": 0.7, "verification": "rejection"}, {}]


class Pair:
    """The same requests in two speculators: one is called for each request, the other once a step."""

    def __init__(self, sources, shared):
        config = replace(SMALL, shared=shared, target_rows=256)
        library = FixedLibrary(MemoryIndex([TARGETS[0].generate(PROMPT, 300)])) if CORPUS in sources else None
        self.single, self.batch = (Successors(config, sources, library=library) for _ in range(2))
        self.views = [[view([*PROMPT, i, 2 * i], i, VOCAB, seed=i, **PARAMS[i]) for i in range(4)] for _ in range(2)]
        for speculator, views in zip((self.single, self.batch), self.views, strict=True):
            for request in views:
                speculator.begin(request)

    def observe(self, outcomes, learners):
        """Add the tokens of all ``outcomes``, and let the requests of ``learners`` observe theirs."""
        for views in self.views:
            for request, outcome in zip(views, outcomes, strict=True):
                request.context.extend(outcome.tokens)
        for i in learners:
            self.single.observe(self.views[0][i], outcomes[i])
        self.batch.observe_batch([self.views[1][i] for i in learners], [outcomes[i] for i in learners])

    def propose(self, budgets):
        expected = [*map(self.single.propose, self.views[0], budgets)]
        assert self.batch.propose_batch(self.views[1], budgets) == expected
        return expected

    def assert_equal_models(self):
        for i in range(4):
            one, other = (speculator.states[i] for speculator in (self.single, self.batch))
            assert (one.n_learnt, one.n_seen) == (other.n_learnt, other.n_seen)
            one, other = one.addressed.model, other.addressed.model
            assert knowledge(one) == knowledge(other)
            assert one.recent_ids.tolist() == other.recent_ids.tolist()
            assert one.recent_weights.tolist() == other.recent_weights.tolist()


def answer(request, draft, budget, kind):
    """Return the outcome of a step, as much of it as ``kind`` says."""
    tree = compose(draft, budget)
    outcome = TARGETS[kind == WIDER].score(request.context.view.tolist(), tree)
    top = outcome.top_ids
    if kind == TEXT_ONLY:
        top = NO_TOP_IDS
    elif kind == UNSCORED:
        top = TopIds(top.nodes, top.ids)
    elif kind == SOME_READ:
        top = TopIds(top.nodes[::2], top.ids[::2], top.logprobs[::2])
    tree = EMPTY_TREE if kind == NOTHING_READ else tree
    return msgspec.structs.replace(outcome, top_ids=NO_TOP_IDS if kind == NOTHING_READ else top, tree=tree)


@settings(max_examples=40)
@given(STEPS, st.sampled_from([BOTH, SOURCES, (TEXT,), (TARGET,)]), st.booleans(), st.integers(0, 3))
def test_a_batch_drafts_and_learns_what_its_requests_would_alone(steps, sources, shared, n_late):
    """The first ``n_late`` requests read their prompts in two chunks, the second one with the others' first step."""
    pair = Pair(sources, shared)
    prompts = [TARGETS[0].read_prompt(request.context.view.tolist()) for request in pair.views[0]]
    half = len(PROMPT) // 2
    read = [(one.prompt_top_ids, one.prompt_top_logprobs) for one in prompts]
    first = [Outcome([], EMPTY_TREE, (), NO_TOP_IDS, ids[:half], logprobs[:half]) for ids, logprobs in read]
    last = [
        Outcome(one.tokens, EMPTY_TREE, (), NO_TOP_IDS, ids[half:], logprobs[half:], half)
        for one, (ids, logprobs) in zip(prompts, read, strict=True)
    ]
    pair.observe([*first[:n_late], *prompts[n_late:]], range(4))
    pair.assert_equal_models()
    for kinds, budgets in steps:
        drafts = pair.propose(budgets)
        outcomes = [*map(answer, pair.views[0], drafts, budgets, kinds)]
        outcomes[:n_late] = last[:n_late]
        pair.observe(outcomes, [i for i in range(4) if i < n_late or kinds[i] != MISSED])
        pair.assert_equal_models()
        n_late = 0
    pair.propose((7, 24, 3, 100))


def test_slots_of_finished_requests_are_reused_and_a_moved_context_is_found():
    pair = Pair(BOTH, False)
    for number in range(30):
        drafts = pair.propose((8,) * 4)
        pair.observe([*map(answer, pair.views[0], drafts, (8,) * 4, (FULL,) * 4)], range(4))
        if number % 3 == 2:
            for speculator, views in zip((pair.single, pair.batch), pair.views, strict=True):
                speculator.end(views[number % 4])
                views[number % 4] = view([number, *PROMPT], number % 4, VOCAB, seed=number)
                speculator.begin(views[number % 4])
        pair.assert_equal_models()
    arrays = [request.context.array for request in pair.views[1]]
    for views in pair.views:
        for request in views:
            request.context.extend([5] * 2 * len(request.context.array))
    assert all(request.context.array is not array for request, array in zip(pair.views[1], arrays, strict=True))
    pair.propose((8,) * 4)
    assert sorted(pair.batch.states[i].slot for i in range(4)) == sorted({pair.batch.states[i].slot for i in range(4)})


def test_two_outcomes_of_one_request_in_a_batch_are_learnt_one_after_the_other():
    pair = Pair(BOTH, False)
    for _ in range(3):
        outcomes = [*map(answer, pair.views[0], pair.propose((8,) * 4), (8,) * 4, (FULL,) * 4)]
        for views in pair.views:
            for i in (0, 1, 1, 2):
                views[i].context.extend(outcomes[i].tokens)
        for i in (0, 1, 1, 2):
            pair.single.observe(pair.views[0][i], outcomes[i])
        pair.batch.observe_batch([pair.views[1][i] for i in (0, 1, 1, 2)], [outcomes[i] for i in (0, 1, 1, 2)])
        pair.assert_equal_models()


def test_more_requests_than_slots_draft_together():
    speculator = Successors(SMALL, BOTH)
    views = [view([*PROMPT, i], i, VOCAB) for i in range(40)]
    for request in views:
        speculator.begin(request)
    drafts = speculator.propose_batch(views, [8] * 40)
    assert drafts == [speculator.propose(request, 8) for request in views]
    assert speculator.propose_batch([], []) == []


def test_a_request_that_fails_does_not_change_the_others():
    pair = Pair(BOTH, False)
    assert isinstance(pair.batch, BatchSpeculator)
    outcomes = [*map(answer, pair.views[0], pair.propose((8,) * 4), (8,) * 4, (FULL,) * 4)]
    for i in range(3):
        pair.views[0][i].context.extend(outcomes[i].tokens)
        pair.views[1][i].context.extend(outcomes[i].tokens)
        pair.single.observe(pair.views[0][i], outcomes[i])
    stranger = view(PROMPT, 99, VOCAB)
    with pytest.raises(KeyError):
        pair.batch.observe_batch([*pair.views[1][:3], stranger], outcomes)
    with pytest.raises(KeyError):
        pair.batch.propose_batch([*pair.views[1][:3], stranger], [8] * 4)
    for i in range(3):
        pair.batch.observe(pair.views[1][i], outcomes[i])
    pair.assert_equal_models()
    isolated = FaultIsolated(pair.batch)
    drafts = isolated.propose_batch([*pair.views[1], stranger], [8] * 5)
    assert drafts == [*pair.propose((8,) * 4), []]
