"""What the mixed model keeps: bounded, of a request while it lives, of a scope for that scope alone."""

import gc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.composer import compose
from engine.protocol import Outcome
from engine.top_ids import TopIds
from speculators.successors.config import SuccessorConfig
from speculators.successors.learning import RECENT_WIDTH
from speculators.successors.models import MOST_IDLE
from speculators.successors.speculator import Successors
from speculators.successors.table import NONE
from speculators.testing import HashTarget
from tests.support.successor_runs import BOTH, HALVES, PROMPT, SMALL, Decoding, decode, nodes, view

# Memory.


@pytest.mark.parametrize("sources", HALVES)
def test_nothing_of_a_request_is_left_and_the_next_one_starts_cold(sources):
    target = HashTarget(48, n_successors=2)
    speculator = Successors(SMALL, sources)
    first = decode(speculator, target, view(PROMPT))
    assert (speculator._states, speculator._models._shared) == ({}, {})
    assert decode(speculator, target, view(PROMPT)).drafts == first.drafts
    speculator.end(view(PROMPT, 99))  # never begun: harmless


@pytest.mark.parametrize("sources", HALVES)
def test_models_of_requests_that_ended_serve_the_next_ones_and_tell_nothing(sources):
    target = HashTarget(48, n_successors=2)
    speculator, fresh = Successors(SMALL, sources), Successors(SMALL, sources)
    kept = None
    for number in range(4):
        prompt = [*PROMPT, number, 3 * number]
        run = Decoding(speculator, target, view(prompt, number))
        known = speculator._states[number].addressed
        assert kept is None or known is kept
        kept = known
        for _ in range(10):
            run.step()
        speculator.end(run.request)
        assert run.drafts == decode(fresh, target, view(prompt)).drafts
        fresh = Successors(SMALL, sources)
    many = [view(PROMPT, number) for number in range(3 * MOST_IDLE)]
    for one in many:
        speculator.begin(one)
    for one in many:
        speculator.end(one)
    assert all(len(idle) <= MOST_IDLE for idle in speculator._models._idle.values())


def arrays(part):
    if isinstance(part, tuple):
        return [array for one in part for array in arrays(one)]
    return [part] if isinstance(part, np.ndarray) else []


def test_memory_is_bounded_as_documented():
    speculator = Successors(SuccessorConfig(), BOTH)
    model = speculator._models.new(1_000_000)
    assert sum(array.nbytes for array in model.target) < 1.01 * 32768 * 144
    assert sum(array.nbytes for array in model.text) < 1.01 * 32768 * 48
    short = speculator._models.new(50)
    assert sum(array.nbytes for array in short.text) < 0.1 * sum(array.nbytes for array in model.text)
    assert sum(array.nbytes for array in short.target) < 0.6 * sum(array.nbytes for array in model.target)


def test_a_long_text_needs_no_more_memory_than_a_short_one():
    target = HashTarget(40_000, n_successors=9)
    speculator = Successors(replace(SMALL, shared=True), BOTH)
    run = Decoding(speculator, target, view(PROMPT, vocab_size=40_000), budget=8)
    model = speculator._states[0].addressed.model
    before = sum(array.nbytes for array in arrays(model))
    for _ in range(300):
        run.step()
    assert (model.text.keys != 0).all()
    assert sum(array.nbytes for array in arrays(model)) == before
    assert speculator._states[0].addressed.model is model


def test_ended_requests_are_not_held_by_anything():
    target = HashTarget(48, n_successors=2)
    speculator = Successors(SMALL, BOTH)
    for i in range(30):
        decode(speculator, target, view(PROMPT, i), 2)
    gc.collect()
    held = [
        o
        for o in gc.get_objects()
        if type(o).__name__ == "Model" and getattr(o, "candidates", None) is speculator._models._candidates
    ]
    assert len(held) == 1  # empty, for the next one


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
    assert set(speculator._models._shared) == {"a", "b"}


@pytest.mark.parametrize("sources", HALVES)
def test_rollouts_of_a_prompt_start_with_what_earlier_ones_wrote_and_other_prompts_do_not(sources):
    target = HashTarget(48, n_successors=2)
    speculator = Successors(SuccessorConfig(shared=True, prompts=2), sources)
    others = [[*PROMPT[:-1], last] for last in (40, 41, 42)]
    cold = {scope: decode(speculator, target, view(PROMPT, 0, scope=scope), 15) for scope in "ab"}
    again = decode(speculator, target, view(PROMPT, 1, scope="a"), 15)
    assert len(again.output) > len(cold["a"].output)
    assert cold["b"].drafts == cold["a"].drafts  # nothing crosses scopes
    alone = decode(Successors(SuccessorConfig(), sources), target, view(others[0]), 15)
    assert decode(speculator, target, view(others[0], 2, scope="a"), 15).drafts == alone.drafts
    for other in others[1:]:
        decode(speculator, target, view(other, 3, scope="a"), 15)
    assert {scope: len(kept) for scope, kept in speculator._models._shared.items()} == {"a": 2, "b": 1}
    assert decode(speculator, target, view(PROMPT, 4, scope="a"), 15).drafts == cold["a"].drafts  # it gave way


def test_requests_that_run_together_share_tables_and_not_what_their_text_is_about():
    target = HashTarget(64)
    speculator = Successors(SuccessorConfig(shared=True), BOTH)
    views = [view(PROMPT, 0, scope="a"), view([30, 31, 32], 1, scope="a")]
    for one in views:
        speculator.begin(one)
        speculator.observe(one, target.read_prompt(one.context.view.tolist()))
    first, second = (speculator._states[one.request_id].addressed.model for one in views)
    assert first.text is second.text
    assert first.target is second.target
    recent = [set(model.recent_ids.tolist()) - {NONE} for model in (first, second)]
    for tokens, prompt in zip(recent, (PROMPT, [30, 31, 32]), strict=True):
        said = {token for end in range(1, len(prompt) + 1) for token in target.top_ids(prompt[:end])[:RECENT_WIDTH]}
        assert tokens
        assert tokens <= said
