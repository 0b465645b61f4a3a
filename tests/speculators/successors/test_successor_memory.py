"""Memory of the mixed model: bounded, of a request while it lives, of a scope for that scope alone."""

from __future__ import annotations

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
from tests.support.drafts import observe_prompt, tokens_of
from tests.support.successor_runs import BOTH, HALVES, PROMPT, SMALL, Decoding, decode, view

TARGET = HashTarget(48, n_successors=2)
SHARED = SuccessorConfig(shared=True, target_rows=2048, text_rows=2048)


@pytest.mark.parametrize("sources", HALVES)
def test_models_of_ended_requests_are_used_again_and_keep_nothing_of_them(sources):
    speculator = Successors(SMALL, sources)
    models = set()
    for number in range(4):
        prompt = [*PROMPT, number, 3 * number]
        run = Decoding(speculator, TARGET, view(prompt, number))
        models.add(id(speculator._states[number].addressed))
        for _ in range(10):
            run.step()
        speculator.end(run.request)
        assert run.drafts == decode(Successors(SMALL, sources), TARGET, view(prompt)).drafts
    assert len(models) == 1
    many = [view(PROMPT, number) for number in range(3 * MOST_IDLE)]
    for one in many:
        speculator.begin(one)
    for one in many:
        speculator.end(one)
    assert all(len(idle) <= MOST_IDLE for idle in speculator._models._idle.values())


def test_ended_requests_are_not_held_by_anything():
    speculator = Successors(SMALL, BOTH)
    for i in range(20):
        decode(speculator, TARGET, view(PROMPT, i), 2)
    gc.collect()
    held = [
        o
        for o in gc.get_objects()
        if type(o).__name__ == "Model" and getattr(o, "candidates", None) is speculator._models._candidates
    ]
    assert len(held) == 1  # empty, for the next one


def n_bytes(part):
    if isinstance(part, tuple):
        return sum(map(n_bytes, part))
    return part.nbytes if isinstance(part, np.ndarray) else 0


def test_memory_is_bounded_as_documented_and_less_for_short_texts():
    models = Successors(SuccessorConfig(), BOTH)._models
    model, short = models.new(1_000_000), models.new(50)
    assert n_bytes(model.target) < 1.01 * 32768 * 144
    assert n_bytes(model.text) < 1.01 * 32768 * 48
    assert n_bytes(short.text) < 0.1 * n_bytes(model.text)
    assert n_bytes(short.target) < 0.6 * n_bytes(model.target)


def test_memory_does_not_grow_with_the_text():
    target = HashTarget(40_000, n_successors=9)
    speculator = Successors(replace(SMALL, shared=True), BOTH)
    run = Decoding(speculator, target, view(PROMPT, vocab_size=40_000), budget=8)
    model = speculator._states[0].addressed.model
    before = n_bytes(model)
    for _ in range(300):
        run.step()
    assert (model.text.keys != 0).all()
    assert n_bytes(model) == before
    assert speculator._states[0].addressed.model is model


@settings(max_examples=12)
@given(st.integers(0, 999), st.sampled_from(HALVES))
def test_tokens_of_one_scope_never_reach_another(seed, sources):
    """Scopes write with disjoint tokens, so a foreign one is noticed."""
    speculator = Successors(replace(SMALL, shared=True), sources)
    rng = np.random.default_rng(seed)
    homes = {"a": range(20), "b": range(20, 40)}
    for request_id, name in enumerate(rng.choice(["a", "b"], 8).tolist()):
        home = list(homes[name])
        request = view(rng.choice(home, 12).tolist(), request_id, 40, scope=name)
        speculator.begin(request)
        for _ in range(4):
            branches = speculator.propose(request, 16)
            assert set(tokens_of(branches)) <= set(home)
            tree = compose(branches, 16)
            ids = np.array([rng.choice(home, 16, replace=False) for _ in range(len(tree) + 1)], np.int32)
            top = TopIds(np.arange(-1, len(tree), dtype=np.int32), ids, np.full(ids.shape, np.log(1 / 20), np.float32))
            token = int(rng.choice(home))
            request.context.extend([token])
            speculator.observe(request, Outcome([token], tree, (), top))
        speculator.end(request)


@pytest.mark.parametrize("sources", HALVES)
@pytest.mark.parametrize("prompts", [0, 2])
def test_a_request_starts_with_the_knowledge_of_its_scope_and_where_set_of_its_prompt(sources, prompts):
    speculator = Successors(replace(SHARED, prompts=prompts), sources)

    def run(prompt, scope):
        return decode(speculator, TARGET, view(prompt, scope=scope), 15)

    cold = run(PROMPT, "a")
    again = run(PROMPT, "a")
    assert len(again.output) > len(cold.output)
    assert run(PROMPT, "b").drafts == cold.drafts
    if prompts:  # rollouts of other prompts start cold, and of each scope two prompts are kept
        other, *more = ([*PROMPT[:-1], last] for last in (40, 41, 42))
        alone = decode(Successors(replace(SHARED, shared=False), sources), TARGET, view(other), 15)
        assert run(other, "a").drafts == alone.drafts
        for prompt in more:
            run(prompt, "a")
        assert {scope: len(kept) for scope, kept in speculator._models._shared.items()} == {"a": 2, "b": 1}
        assert run(PROMPT, "a").drafts == cold.drafts


def test_live_requests_of_a_scope_share_tables_and_not_their_recent_tokens():
    target, speculator, prompts = HashTarget(64), Successors(SHARED, BOTH), (PROMPT, [30, 31, 32])
    for number, prompt in enumerate(prompts):
        request = view(prompt, number, 64, scope="a")
        speculator.begin(request)
        observe_prompt(speculator, request, target)
    first, second = (speculator._states[number].addressed.model for number in range(2))
    assert first.text is second.text
    assert first.target is second.target
    for model, prompt in zip((first, second), prompts, strict=True):
        said = {token for end in range(1, len(prompt) + 1) for token in target.top_ids(prompt[:end])[:RECENT_WIDTH]}
        assert set(model.recent_ids.tolist()) - {NONE} <= said
        assert (model.recent_ids != NONE).any()
