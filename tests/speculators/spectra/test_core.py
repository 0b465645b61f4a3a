"""SPECTRA-CORE against a literal transcription of its published algorithm (Le et al., 2025, Algorithm 1)."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.errors import ConfigError
from engine.protocol import Branch, Outcome
from engine.tree import EMPTY_TREE
from speculators.spectra.core import SpectraCore, SpectraCoreConfig
from speculators.testing import HashTarget

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
    guesses = [list(branch.tokens) for branch in branches if not branch.probe]
    return guesses, [list(branch.tokens) for branch in branches if branch.probe]


def check_against_oracle(decode_steps, new_request, config, prompt, budget, n_successors, seed, n_tokens=60):
    target = HashTarget(40, n_successors)
    request = new_request(prompt, seed=seed, vocab_size=40)
    oracle = Oracle(config, prompt, seed)
    for step in decode_steps(SpectraCore(config), target, request, n_tokens, budget):
        x = request.context.view.tolist()
        if len(x) == len(prompt) + 1:
            oracle.observe(x, Outcome(x[-1:], EMPTY_TREE))
        assert split(step.branches) == oracle.propose(x, budget)
        assert len(step.outcome.tree) <= budget
        oracle.observe(x + list(step.outcome.tokens), step.outcome)
    assert request.context.view[len(prompt) :].tolist()[:n_tokens] == target.generate(prompt, n_tokens)


@pytest.mark.parametrize("budget", [5, 64, ROOMY])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_step_equals_the_literal_method(decode_steps, new_request, name, budget):
    check_against_oracle(decode_steps, new_request, CONFIGS[name], [1, 2, 3, 1, 2, 5, 6], budget, 3, seed=3)


@given(
    prompt=st.lists(st.integers(0, 39), min_size=1, max_size=20),
    budget=st.integers(0, 130),
    n_successors=st.integers(1, 6),
    seed=st.integers(0, 2**64 - 1),
    name=st.sampled_from(sorted(CONFIGS)),
)
def test_any_prompt_and_budget_equal_the_literal_method(
    decode_steps, new_request, prompt, budget, n_successors, seed, name
):
    check_against_oracle(decode_steps, new_request, CONFIGS[name], prompt, budget, n_successors, seed, n_tokens=25)


def run(decode, config, n_tokens=200, budget=64):
    target = HashTarget(64, n_successors=2)
    prompt = [1, 2, 3, 4]
    tokens, n_steps = decode(SpectraCore(config), target, prompt, n_tokens, budget)
    assert tokens == target.generate(prompt, n_tokens)
    return n_steps


def test_it_decodes_in_fewer_steps_than_tokens_without_reading_any_text(decode):
    assert run(decode, PUBLISHED, budget=128) < 150


@pytest.mark.parametrize("off", [{"use_forward": False}, {"use_backward": False}, {"use_sub_ngrams": False}])
def test_every_ablation_still_drafts(decode, off):
    assert run(decode, replace(PUBLISHED, **off), budget=128) < 150


def test_without_any_dictionary_there_are_no_guesses(decode):
    assert run(decode, replace(PUBLISHED, use_forward=False, use_backward=False), budget=128) == 199


def first_proposal(config, request, budget):
    speculator = SpectraCore(config)
    speculator.begin(request)
    return speculator, split(speculator.propose(request, budget))


def test_pool_rows_take_turns_when_not_all_fit(new_request):
    config = replace(PUBLISHED, pool_rows=5, ngram=3)
    target = HashTarget(5000)
    request = new_request(list(range(1000, 1400)), vocab_size=5000)
    speculator, (_, first) = first_proposal(config, request, 4)
    seen = [first]
    for _ in range(4):
        branches = [Branch(row, "spectra-core", probe=True) for row in seen[-1]]
        outcome = target.score(request.context.view.tolist(), compose(branches, ROOMY))
        request.context.extend(outcome.tokens)
        speculator.observe(request, outcome)
        seen.append(split(speculator.propose(request, 4))[1])
    assert all(len(rows) == 2 for rows in seen)
    rows = [tuple(row) for step in seen[:2] for row in step] + [tuple(seen[2][0])]
    assert len(set(rows)) == 5  # two, two, then the fifth
    assert seen[2][1][0] == first[0][1]  # the first row again, shifted by one


def test_a_row_whose_probe_was_dropped_stays_as_it_is_and_is_next(new_request):
    config = replace(PUBLISHED, pool_rows=3)
    target = HashTarget(5000)
    request = new_request(list(range(1000, 1400)), vocab_size=5000)
    speculator, (_, rows) = first_proposal(config, request, 64)
    kept = compose([Branch(rows[0], "spectra-core", probe=True)], ROOMY)
    outcome = target.score(request.context.view.tolist(), kept)
    request.context.extend(outcome.tokens)
    speculator.observe(request, outcome)
    after = split(speculator.propose(request, 64))[1]
    assert after[:2] == rows[1:]
    assert after[2][:-1] == rows[0][1:]


def test_guesses_leave_the_probes_their_share(new_request):
    prompt = [token for i in range(15) for token in (1, 100 + 4 * i, 101 + 4 * i, 102 + 4 * i, 103 + 4 * i)] + [1]
    request = new_request(prompt, vocab_size=500)
    _, (guesses, probes) = first_proposal(SpectraCoreConfig(probe_share=0.4, backward_tokens=5), request, 64)
    assert sum(map(len, guesses)) == 40
    assert len(probes) == 6
    _, (guesses, probes) = first_proposal(SpectraCoreConfig(probe_share=0.0, backward_tokens=5), request, 64)
    assert sum(map(len, guesses)) == 57  # 13 chains of 4 beside the backward guess, which the 14th is a part of
    assert len(probes) < 6


def test_without_guesses_probes_take_the_whole_budget(new_request):
    request = new_request(list(range(100, 400)), vocab_size=500)
    _, (guesses, probes) = first_proposal(PUBLISHED, request, 64)
    assert guesses == []
    assert len(probes) == 15


def test_the_pool_depends_on_both_seeds(new_request):
    def pool(config_seed, request_seed):
        request = new_request(list(range(100)), seed=request_seed)
        return first_proposal(replace(PUBLISHED, seed=config_seed), request, 64)[1][1]

    assert pool(0, 1) == pool(0, 1)
    assert pool(0, 1) != pool(0, 2)
    assert pool(0, 1) != pool(1, 1)


def test_nothing_but_python_ints_is_drafted(decode_steps, new_request):
    target = HashTarget(40)
    for step in decode_steps(SpectraCore(), target, new_request([1, 2, 3]), 50):
        assert all(type(token) is int for branch in step.branches for token in branch.tokens)


def test_memory_is_bounded_however_long_the_text(decode_steps, new_request):
    config = SpectraCoreConfig(per_key=2, max_forward_keys=16, max_backward_keys=64)
    speculator = SpectraCore(config)
    target = HashTarget(1000, n_successors=50)
    for _ in decode_steps(speculator, target, new_request(list(range(300)), vocab_size=1000), 200):
        state = speculator._states[0]
        assert len(state.forward) <= 17
        assert len(state.backward) <= 65


def test_a_prompt_chunk_without_tokens_changes_nothing(new_request):
    request = new_request([1, 2, 3])
    speculator, before = first_proposal(SpectraCoreConfig(), request, 64)
    speculator.observe(request, Outcome((), EMPTY_TREE))
    speculator.propose(request, 64)
    speculator.observe(request, Outcome((), EMPTY_TREE))
    guesses, rows = split(speculator.propose(request, 64))
    assert guesses == before[0]
    assert sorted(rows) == sorted(before[1])


def test_end_drops_all_state(decode, new_request):
    speculator = SpectraCore()
    decode(speculator, HashTarget(40), [1, 2, 3], 30)
    assert speculator._states == {}
    speculator.end(new_request([1]))


@pytest.mark.parametrize(
    "bad",
    [
        {"ngram": 1},
        {"pool_rows": 0},
        {"max_guesses": 0},
        {"per_key": 0},
        {"explore": 1.5},
        {"probe_share": -0.1},
        {"guess_order": "forward"},
        {"max_backward_keys": 3},
    ],
)
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        SpectraCoreConfig(**bad)
