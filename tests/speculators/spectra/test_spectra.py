"""SPECTRA-CORE against a literal transcription of Algorithm 1 (Le et al., 2025), and SPECTRA: core and retrieval."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.protocol import Branch, Outcome
from engine.scheduling.stats import count_sources
from engine.tree import EMPTY_TREE, TokenTree
from retrieval_store.index.index import FixedLibrary
from retrieval_store.index.memory import MemoryIndex
from speculators.spectra.core import SpectraCore, SpectraCoreConfig
from speculators.spectra.retrieval import SpectraRetrieval
from speculators.spectra.speculator import Spectra, SpectraConfig
from speculators.testing import HashTarget
from tests.speculators.drafts import Path, count_steps, first_draft, steps, tree_paths, view

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
    "one guess": SpectraCoreConfig(max_guesses=1),
    "long backward guess": SpectraCoreConfig(backward_tokens=12),
    "bigrams": SpectraCoreConfig(ngram=2),
}


class LiteralSpectraCore:
    """The algorithm line by line, with plain lists."""

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
        return [list(guess) for guess in order if guess][: self.config.max_guesses]

    def propose(self, x, budget):
        """Return guess chains and probed rows, cut to the budget."""
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
    oracle = LiteralSpectraCore(config, prompt, seed)
    for step in steps(SpectraCore(config), target, request, n_tokens, budget):
        x = request.context.view.tolist()
        if len(x) == len(prompt) + 1:
            oracle.observe(x, Outcome(x[-1:], EMPTY_TREE))
        assert split(step.branches) == oracle.propose(x, budget)
        assert len(step.outcome.tree) <= budget
        oracle.observe(x + list(step.outcome.tokens), step.outcome)
    assert request.context.view[len(prompt) :].tolist()[:n_tokens] == target.generate(prompt, n_tokens)


@pytest.mark.parametrize(("name", "budget"), [*zip(CONFIGS, [64, ROOMY, 5] * 9, strict=False)])
def test_every_step_of_the_core_follows_the_algorithm(name, budget):
    check_against_oracle(CONFIGS[name], [1, 2, 3, 1, 2, 5, 6], budget, 3, seed=3, n_tokens=60)


@given(
    prompt=st.lists(st.integers(0, 39), min_size=1, max_size=20),
    budget=st.integers(0, 130),
    n_successors=st.integers(1, 6),
    seed=st.integers(0, 2**64 - 1),
    name=st.sampled_from(sorted(CONFIGS)),
)
def test_any_prompt_and_budget_follow_the_algorithm(prompt, budget, n_successors, seed, name):
    check_against_oracle(CONFIGS[name], prompt, budget, n_successors, seed, n_tokens=25)


def test_a_row_whose_probe_was_dropped_is_probed_next():
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


def test_memory_of_the_core_is_bounded():
    config = SpectraCoreConfig(per_key=2, max_forward_keys=16, max_backward_keys=64)
    speculator = SpectraCore(config)
    for _ in steps(speculator, HashTarget(1000, 50), view(list(range(300)), vocab_size=1000), 200):
        state = speculator.states[0]
        assert len(state.forward) <= 17
        assert len(state.backward) <= 65


MODES = ("priority", "paper")
TOKENS = st.lists(st.integers(0, 5), min_size=1, max_size=40)
DOCUMENTS = st.lists(TOKENS, max_size=5)
TARGET = HashTarget(48, n_successors=3)
CORPUS = [TARGET.generate([i, i + 1], 60) for i in range(20)]
PROMPT = [3, 1, 4, 1, 5]


def spectra(documents, mode: str = "priority", core: SpectraCoreConfig | None = None, **config: int) -> Spectra:
    return Spectra(core, SpectraRetrieval(FixedLibrary(MemoryIndex(documents))), SpectraConfig(mode, **config))


def drafts(method: Spectra | SpectraCore, context, budget: int = 64) -> list[Branch]:
    return first_draft(method, view(context, vocab_size=512), budget)


def guesses(tree: TokenTree) -> set[Path]:
    return {path for path, probe in zip(tree_paths(tree), tree.probe, strict=True) if not probe}


@given(DOCUMENTS, TOKENS, st.sampled_from(MODES), st.integers(0, 70), st.integers(0, 20))
def test_drafts_stay_within_the_budget_and_leave_probes_their_share(documents, context, mode, budget, reserve):
    method = spectra(documents, mode, reserve=reserve)
    tree = compose(drafts(method, context, budget), 10_000)
    assert len(tree) <= budget
    assert len(guesses(tree)) <= method.guess_nodes(budget)
    n_probes = len(compose(drafts(SpectraCore(), context, budget), 10_000).probe_ends)
    assert len(tree.probe_ends) >= min(n_probes, int(budget * 0.4) // 4, 15)


@pytest.mark.parametrize(("n_documents", "reserve", "retrieved"), [(30, 0, 0), (30, 1, 4), (30, 9, 12), (1, 3, 4)])
def test_priority_mode_reserves_nodes_for_retrieval(n_documents, reserve, retrieved):
    """Guesses may use 36 nodes; retrieval gets at most a third of these, in chains of four."""
    context = [i for n in range(20, 36) for i in (1, n, n + 20, n + 40, n + 60)] + [1]
    documents = [[1, 200 + i, 300 + i, 400 + i, 450 + i] for i in range(n_documents)]
    core = SpectraCoreConfig(backward_tokens=4)
    branches = drafts(spectra(documents, "priority", core, reserve=reserve), context, 60)
    counts = count_sources(compose(branches, 60), ())
    found = counts["spectra-retrieval"].drafted if "spectra-retrieval" in counts else 0
    assert (found, counts["spectra-core"].drafted) == (retrieved, 36 - retrieved)


def test_paper_mode_appends_chains_and_keeps_g_guesses():
    core = replace(SpectraCoreConfig.paper(), learn_from_prompt=True, max_guesses=4)
    documents = [[1, 10, 11], [1, 10, 11], [1, 10, 12], [1, 20], [1, 30]]
    found = drafts(spectra(documents, "paper", core), [1, 2, 3, 4, 5, 1], 128)
    branches = [branch for branch in found if not branch.probe]
    assert [branch.source for branch in branches] == ["spectra-core"] * 2 + ["spectra-retrieval"] * 2
    assert [tuple(branch.tokens) for branch in branches[2:]] == [(10, 11), (20,)]


@given(TOKENS, st.sampled_from(MODES), st.integers(0, 70))
def test_without_a_match_the_draft_is_that_of_the_core(context, mode, budget):
    expected = drafts(SpectraCore(), context, budget)
    config = SpectraConfig(mode)
    for method in (spectra([], mode), Spectra(None, SpectraRetrieval(FixedLibrary()), config), Spectra(config=config)):
        assert drafts(method, context, budget) == expected


def test_the_core_drafts_when_retrieval_fails(caplog):
    class BrokenIndex:
        def query(self, context, limits):
            raise OSError("the disk failed")

    method = Spectra(None, SpectraRetrieval(FixedLibrary(BrokenIndex())))
    for _ in range(2):  # a request that ended is forgotten
        assert drafts(method, [1, 2, 3, 1, 2]) == drafts(SpectraCore(), [1, 2, 3, 1, 2]) != []
    assert "spectra-retrieval failed" in caplog.text


@pytest.mark.parametrize("mode", MODES)
def test_a_fitting_corpus_saves_steps_and_another_one_costs_none(mode):
    misleading = [[(i * k) % 48 for k in range(200)] for i in range(5, 20)]
    alone = count_steps(SpectraCore(), TARGET, PROMPT, 120)
    assert count_steps(spectra(CORPUS, mode), TARGET, PROMPT, 120) < alone
    if mode != "paper":
        assert count_steps(spectra(misleading, mode), TARGET, PROMPT, 120) <= alone + 1


def test_names_of_sources_and_optional_labels_of_dictionaries():
    def sources(method):
        names, drafted = set(), []
        for step in steps(method, TARGET, view(PROMPT, vocab_size=48), 60):
            names |= set(count_sources(step.outcome.tree, step.outcome.accepted))
            drafted.append(step.outcome.tree.tokens)
        return names, drafted

    labels = {"spectra-core.forward", "spectra-core.backward"}
    labelled = SpectraCoreConfig(label_dictionaries=True)
    for mode in MODES:
        assert sources(spectra(CORPUS, mode))[0] == {"spectra-core", "spectra-retrieval"}
        assert sources(spectra(CORPUS, mode, labelled))[0] == labels | {"spectra-retrieval"}
    plain, other = sources(SpectraCore()), sources(SpectraCore(labelled))
    assert (plain[0], other[0]) == ({"spectra-core"}, labels)
    assert plain[1] == other[1]
