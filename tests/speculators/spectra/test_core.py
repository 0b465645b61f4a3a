"""SPECTRA-CORE against a literal transcription of its published algorithm (Le et al., 2025, Algorithm 1)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.protocol import Branch, Outcome
from engine.tree import EMPTY_TREE
from speculators.spectra.core import SpectraCore, SpectraCoreConfig
from speculators.testing import HashTarget
from tests.support.drafts import count_steps, steps, view

PUBLISHED = replace(SpectraCoreConfig.paper(), guess_order="backward-first")
ROOMY = 1000  # nodes: everything fits

CONFIGS = {
    "default": SpectraCoreConfig(),
    "published": PUBLISHED,
    "paper order": SpectraCoreConfig.paper(),
    "no forward dictionary": replace(PUBLISHED, use_forward=False),
    "no backward dictionary": replace(PUBLISHED, use_backward=False),
    "no sub-n-grams": replace(PUBLISHED, use_sub_ngrams=False),
    "learns, no sub-n-grams": SpectraCoreConfig(use_sub_ngrams=False),
    "learns output only": SpectraCoreConfig(learn_from_prompt=False),
    "learns the end of the prompt": SpectraCoreConfig(learn_from_output=False, prompt_window=4),
    "small": SpectraCoreConfig(ngram=3, pool_rows=4, max_guesses=3, per_key=2, explore=0.5, seed=7),
    "reserve": SpectraCoreConfig(max_guesses=4, guess_reserve=3),
    "long backward guess": SpectraCoreConfig(backward_tokens=12),
    "bigrams": SpectraCoreConfig(ngram=2),
}


class Oracle:
    """The method, one line of the algorithm after the other; lists everywhere, nothing clever."""

    def __init__(self, config, prompt, seed):
        self.config = config
        self.forward = {}  # token -> sequences, most recent first
        self.backward = {}
        rng = self.rng = Random(f"{config.seed}/{seed}")
        n_rows, n = config.pool_rows, config.ngram
        drawn = rng.choices(prompt, k=n_rows * (n - 1))
        self.pool = [[*drawn[i * (n - 1) : (i + 1) * (n - 1)], None] for i in range(n_rows)]
        self.turn = 0
        self.probed = []
        self.n_learnt = len(prompt)
        if config.learn_from_prompt:
            self.n_learnt = max(0, len(prompt) - config.prompt_window)
            self.learn_text(prompt)

    def guesses(self, x):
        n = self.config.ngram
        forward = self.forward.get(x[-1], [])  # step 1
        u = []  # step 2
        for _ in range(self.config.backward_tokens or n):
            hit = None
            for k in range(n - 1, 0, -1):
                if k <= len(x + u):
                    hit = self.backward.get(tuple((x + u)[-k:]))
                    if hit is not None:
                        break
            if hit is None:
                break
            u.append(hit)
        order = [*forward, u] if self.config.guess_order == "paper" else [u, *forward]  # step 3
        limit = max(0, self.config.max_guesses - self.config.guess_reserve)
        return [list(guess) for guess in order if guess][:limit]

    def propose(self, x, budget):
        """(guess chains, probed rows), cut to the budget."""
        depth = self.config.ngram - 1
        kept = min(int(budget * self.config.probe_share) // depth, self.config.pool_rows) * depth
        nodes = set()
        chains = []
        for guess in self.guesses(x):
            chain = []
            new = False
            for n in range(1, len(guess) + 1):
                prefix = tuple(guess[:n])
                if prefix not in nodes:
                    if len(nodes) >= budget - kept:
                        break
                    nodes.add(prefix)
                    new = True
                chain = guess[:n]
            if new:
                chains.append(chain)
        self.probed = []
        for i in range(self.config.pool_rows):
            index = (self.turn + i) % self.config.pool_rows
            row = self.pool[index][:depth]
            prefixes = {tuple(row[:n]) for n in range(1, depth + 1)}
            if len(nodes | prefixes) > budget:
                break
            nodes |= prefixes
            self.probed.append(index)
        return chains, [self.pool[index][:depth] for index in self.probed]

    def observe(self, x, outcome):
        answered = []
        for i in self.probed:  # step 6
            best = outcome.top_ids_after(self.pool[i][:-1])
            if best:
                r = self.rng.random()
                unseen = [token for token in best if token not in self.forward]
                self.pool[i][-1] = unseen[0] if r < self.config.explore and unseen else best[0]
                answered.append(i)
        if self.probed:
            self.turn = ((answered or self.probed[:1])[-1] + 1) % self.config.pool_rows
        for i in answered:  # step 7
            self.learn_ngram(self.pool[i])
        for i in answered:  # step 8
            self.pool[i] = [*self.pool[i][1:], None]
        self.probed = []
        if self.config.learn_from_output:
            self.learn_text(x)

    def learn_ngram(self, c):
        n = self.config.ngram
        for j in range(n - 1):
            if self.config.use_sub_ngrams or j == 0:
                self.add_forward(c[j], c[j + 1 :])
            if self.config.use_sub_ngrams or j == n - 2:
                self.add_backward(c[: j + 1], c[j + 1])

    def learn_text(self, x):
        depth = self.config.ngram - 1
        for end in range(self.n_learnt, len(x)):
            for n in range(1 if self.config.use_sub_ngrams else depth, depth + 1):
                if end - n >= 0:
                    self.add_backward(x[end - n : end], x[end])
            if end - depth >= 0:
                self.add_forward(x[end - depth], x[end - depth + 1 : end + 1])
        self.n_learnt = len(x)

    def add_forward(self, token, sequence):
        if self.config.use_forward:
            known = [s for s in self.forward.get(token, []) if s != sequence]
            if self.config.drop_prefixes:
                known = [s for s in known if s != sequence[:-1]]
            self.forward[token] = [list(sequence), *known][: self.config.per_key]

    def add_backward(self, key, token):
        if self.config.use_backward:
            self.backward[tuple(key)] = token


def split(branches):
    assert all(type(token) is int for branch in branches for token in branch.tokens)
    guesses = [list(branch.tokens) for branch in branches if not branch.probe]
    return guesses, [list(branch.tokens) for branch in branches if branch.probe]


def check_against_oracle(config, prompt, budget, n_successors, seed, n_tokens):
    target = HashTarget(40, n_successors)
    request = view(prompt, seed=seed, vocab_size=40)
    oracle = Oracle(config, prompt, seed)
    for step in steps(SpectraCore(config), target, request, n_tokens, budget):
        x = request.context.view.tolist()
        if len(x) == len(prompt) + 1:
            oracle.observe(x, Outcome(x[-1:], EMPTY_TREE))
        assert split(step.branches) == oracle.propose(x, budget)
        assert len(step.outcome.tree) <= budget
        oracle.observe(x + list(step.outcome.tokens), step.outcome)
    assert request.context.view[len(prompt) :].tolist()[:n_tokens] == target.generate(prompt, n_tokens)


@pytest.mark.parametrize(("name", "budget"), [*zip(CONFIGS, [64, ROOMY, 5] * 9, strict=False)])
def test_every_step_equals_the_literal_method(name, budget):
    check_against_oracle(CONFIGS[name], [1, 2, 3, 1, 2, 5, 6], budget, 3, seed=3, n_tokens=60)


@given(
    prompt=st.lists(st.integers(0, 39), min_size=1, max_size=20),
    budget=st.integers(0, 130),
    n_successors=st.integers(1, 6),
    seed=st.integers(0, 2**64 - 1),
    name=st.sampled_from(sorted(CONFIGS)),
)
def test_any_prompt_and_budget_equal_the_literal_method(prompt, budget, n_successors, seed, name):
    check_against_oracle(CONFIGS[name], prompt, budget, n_successors, seed, n_tokens=25)


@pytest.mark.parametrize("off", [(), ("forward",), ("backward",), ("sub_ngrams",), ("forward", "backward")])
def test_each_dictionary_drafts_on_its_own_from_probes_alone(off):
    config = replace(PUBLISHED, **{f"use_{name}": False for name in off})
    n_steps = count_steps(SpectraCore(config), HashTarget(64, n_successors=2), [1, 2, 3, 4], 200, budget=128)
    assert n_steps == 199 if len(off) == 2 else n_steps < 150


def test_a_row_whose_probe_was_dropped_stays_as_it_is_and_is_next():
    target = HashTarget(5000)
    request = view(list(range(1000, 1400)), vocab_size=5000)
    speculator = SpectraCore(replace(PUBLISHED, pool_rows=3))
    speculator.begin(request)
    _, rows = split(speculator.propose(request, 64))
    kept = compose([Branch(rows[0], "spectra-core", probe=True)], ROOMY)
    outcome = target.score(request.context.view.tolist(), kept)
    request.context.extend(outcome.tokens)
    speculator.observe(request, outcome)
    after = split(speculator.propose(request, 64))[1]
    assert after[:2] == rows[1:]
    assert after[2][:-1] == rows[0][1:]


def test_memory_is_bounded_however_long_the_text():
    config = SpectraCoreConfig(per_key=2, max_forward_keys=16, max_backward_keys=64)
    speculator = SpectraCore(config)
    for _ in steps(speculator, HashTarget(1000, 50), view(list(range(300)), vocab_size=1000), 200):
        state = speculator._states[0]
        assert len(state.forward) <= 17
        assert len(state.backward) <= 65
