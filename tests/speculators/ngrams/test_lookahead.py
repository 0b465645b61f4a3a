"""Lookahead against the original's window with its explicit attention mask, and the dictionaries of its guesses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.protocol import Outcome
from engine.tree import EMPTY_TREE
from speculators.ngrams.dictionaries import BackwardDictionary, ForwardDictionary
from speculators.ngrams.lookahead import Lookahead, LookaheadConfig
from tests.speculators.drafts import steps, view
from tests.speculators.ngrams.original_lookahead import LongMemory, Original

PAPER = LookaheadConfig.paper()
ROOMY = 1000  # nodes: everything fits
CONFIGS = {
    "published": PAPER,
    "published + prompt": replace(PAPER, learn_from_prompt=True),
    "published + output": replace(PAPER, learn_from_output=True),
    "default": LookaheadConfig(),
    "small": replace(PAPER, level=3, window=3, guesses=2, seed=5),
    "deep": LookaheadConfig(level=7, window=4, guesses=3),
    "one column": replace(PAPER, window=1),
    "end of the prompt": LookaheadConfig(prompt_window=6),
}


def split(branches):
    guesses = [list(branch.tokens) for branch in branches if not branch.probe]
    return guesses, [tuple(branch.tokens) for branch in branches if branch.probe]


def check(config, prompt, n_successors, seed, budget):
    target, request, original = LongMemory(60, n_successors), view(prompt, seed=seed), Original(config, prompt, seed)
    for step in steps(Lookahead(config), target, request, 30, budget):
        x = request.context.view.tolist()
        if len(x) == len(prompt) + 1 and config.learn_from_output:
            original.learn(x)  # the prefill's token
        guesses, columns = split(step.branches)
        assert columns == original.paths()
        assert guesses == original.guesses(x)
        original.observe(x, target, step.outcome.tokens)
    assert request.context.view[len(prompt) :].tolist()[:30] == target.generate(prompt, 30)


@pytest.mark.parametrize(("name", "budget"), [*((name, ROOMY) for name in CONFIGS), ("published", 64), ("default", 64)])
@given(prompt=st.lists(st.integers(0, 59), max_size=12), n_successors=st.integers(1, 6), seed=st.integers(0, 2**64 - 1))
def test_every_step_equals_the_original(name, budget, prompt, n_successors, seed):
    check(CONFIGS[name], [1, *prompt, 1], n_successors, seed, budget)


@given(
    prompt=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    budgets=st.lists(st.integers(0, 70), min_size=1, max_size=8),
    name=st.sampled_from(sorted(CONFIGS)),
)
def test_any_budget_is_kept_and_the_text_stays_right(prompt, budgets, name):
    target = LongMemory(40, 2)
    request = view(prompt, vocab_size=40)
    speculator = Lookahead(CONFIGS[name])
    speculator.begin(request)
    outcome = Outcome([target.next_token(prompt)], EMPTY_TREE)
    for n in range(30):
        request.context.extend(outcome.tokens)
        speculator.observe(request, outcome)
        budget = budgets[n % len(budgets)]
        branches = speculator.propose(request, budget)
        tree = compose(branches, ROOMY)
        assert len(tree) <= budget
        assert len(tree.probe_ends) == len({tuple(branch.tokens) for branch in branches if branch.probe})
        for branch in branches:
            assert all(type(token) is int for token in branch.tokens)
            assert branch.probe or all(0.0 < score <= 1.0 for score in branch.scores)
        outcome = target.score(request.context.view.tolist(), tree)
    text = request.context.view[len(prompt) :].tolist()
    assert text == target.generate(prompt, len(text))


def test_memory_of_lookahead_is_bounded():
    speculator = Lookahead(LookaheadConfig(max_keys=16, guesses=2))
    for _ in steps(speculator, LongMemory(1000, 9), view(list(range(300)), vocab_size=1000), 200):
        state = speculator.states[0]
        assert len(state.pool) <= 17
        assert len(state.window.paths) <= 9


@given(st.lists(st.integers(0, 30), max_size=80), st.integers(2, 12))
def test_keys_are_bounded_and_the_recent_half_always_survives(tokens, max_keys):
    forward = ForwardDictionary(per_key=15, max_keys=max_keys, drop_prefixes=False)
    for i, token in enumerate(tokens):
        forward.add(token, (i,))
        assert len(forward) <= max_keys + 1
    recent = list(dict.fromkeys(reversed(tokens)))
    assert all(token in forward for token in recent[: max_keys // 2])


@given(st.lists(st.integers(0, 9), max_size=200), st.integers(10, 40))
def test_backward_keys_are_bounded_and_the_last_windows_survive(text, max_keys):
    backward = BackwardDictionary(max_keys)
    backward.learn(text, 0, 1, 4)
    assert len(backward) <= max_keys + 1
    if len(text) > 1:
        assert backward.get((text[-2],)) == text[-1]
