"""SPECTRA: how its two parts share one budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.protocol import Branch
from engine.scheduling.stats import count_sources
from engine.tree import TokenTree
from retrieval_store.index.index import FixedLibrary
from retrieval_store.index.memory import MemoryIndex
from speculators.spectra.core import SpectraCore, SpectraCoreConfig
from speculators.spectra.retrieval import SpectraRetrieval
from speculators.spectra.speculator import Spectra, SpectraConfig
from speculators.testing import HashTarget
from tests.support.drafts import Path, count_steps, first_draft, steps, tree_paths, view

MODES = ("score", "priority", "paper")
TOKENS = st.lists(st.integers(0, 5), min_size=1, max_size=40)
DOCUMENTS = st.lists(TOKENS, max_size=5)
TARGET = HashTarget(48, n_successors=3)
CORPUS = [TARGET.generate([i, i + 1], 60) for i in range(20)]
PROMPT = [3, 1, 4, 1, 5]


def spectra(documents, mode: str = "score", core: SpectraCoreConfig | None = None, **config: int) -> Spectra:
    return Spectra(core, SpectraRetrieval(FixedLibrary(MemoryIndex(documents))), SpectraConfig(mode, **config))


def drafts(method: Spectra | SpectraCore, context, budget: int = 64) -> list[Branch]:
    return first_draft(method, view(context, vocab_size=512), budget)


def guesses(tree: TokenTree) -> set[Path]:
    return {path for path, probe in zip(tree_paths(tree), tree.probe, strict=True) if not probe}


@given(DOCUMENTS, TOKENS, st.sampled_from(MODES), st.integers(0, 70), st.integers(0, 20))
def test_the_draft_keeps_to_the_budget_and_probes_keep_their_share(documents, context, mode, budget, reserve):
    method = spectra(documents, mode, reserve=reserve)
    tree = compose(drafts(method, context, budget), 10_000)
    assert len(tree) <= budget
    assert len(guesses(tree)) <= method._core.guess_nodes(budget)
    n_probes = len(compose(drafts(SpectraCore(), context, budget), 10_000).probe_ends)
    assert len(tree.probe_ends) >= min(n_probes, int(budget * 0.4) // 4, 15)


@given(DOCUMENTS, TOKENS, st.sampled_from(("priority", "paper")), st.integers(0, 70))
def test_without_a_reserve_every_internal_guess_keeps_its_nodes(documents, context, mode, budget):
    alone = guesses(compose(drafts(SpectraCore(), context, budget), budget))
    assert alone <= guesses(compose(drafts(spectra(documents, mode, reserve=0), context, budget), budget))


@given(DOCUMENTS, TOKENS, st.integers(0, 70))
def test_by_score_an_internal_guess_only_gives_way_to_a_likelier_node(documents, context, budget):
    method, core, request = spectra(documents), SpectraCore(), view(context, vocab_size=512)
    method.begin(request)
    core.begin(request)
    kept = guesses(compose(method.propose(request, budget), budget))
    candidates = method._drafted.get(0)
    if candidates is not None:
        paths = tree_paths(TokenTree(candidates.tokens, candidates.parents))
        reach = dict(zip(paths, candidates.reach(), strict=True))
        worst = min((value for path, value in reach.items() if path in kept), default=1.0)
        assert all(value <= worst for path, value in reach.items() if path not in kept)
    if candidates is None or len(candidates.tokens) <= method._core.guess_nodes(budget):
        assert guesses(compose(core.propose(request, budget), budget)) <= kept


@pytest.mark.parametrize(("n_documents", "reserve", "retrieved"), [(30, 0, 0), (30, 1, 4), (30, 9, 12), (1, 3, 4)])
def test_by_priority_retrieval_gets_its_reserve_and_leaves_what_it_does_not_use(n_documents, reserve, retrieved):
    """36 nodes are for guesses: at most a third of these for the corpus, in chains of four."""
    context = [i for n in range(20, 36) for i in (1, n, n + 20, n + 40, n + 60)] + [1]
    documents = [[1, 200 + i, 300 + i, 400 + i, 450 + i] for i in range(n_documents)]
    core = SpectraCoreConfig(backward_tokens=4)
    branches = drafts(spectra(documents, "priority", core, reserve=reserve), context, 60)
    counts = count_sources(compose(branches, 60), ())
    found = counts["spectra-retrieval"].drafted if "spectra-retrieval" in counts else 0
    assert (found, counts["spectra-core"].drafted) == (retrieved, 36 - retrieved)


def test_the_published_order_appends_chains_and_cuts_the_list_at_g():
    core = replace(SpectraCoreConfig.paper(), learn_from_prompt=True, max_guesses=4)
    documents = [[1, 10, 11], [1, 10, 11], [1, 10, 12], [1, 20], [1, 30]]
    found = drafts(spectra(documents, "paper", core), [1, 2, 3, 4, 5, 1], 128)
    branches = [branch for branch in found if not branch.probe]
    assert [branch.source for branch in branches] == ["spectra-core"] * 2 + ["spectra-retrieval"] * 2
    assert [tuple(branch.tokens) for branch in branches[2:]] == [(10, 11), (20,)]


@given(TOKENS, st.sampled_from(MODES), st.integers(0, 70))
def test_with_nothing_to_retrieve_the_draft_is_the_cores(context, mode, budget):
    expected = drafts(SpectraCore(), context, budget)
    config = SpectraConfig(mode)
    for method in (spectra([], mode), Spectra(None, SpectraRetrieval(FixedLibrary()), config), Spectra(config=config)):
        assert drafts(method, context, budget) == expected


def test_a_failing_retrieval_leaves_the_core_at_work(caplog):
    class Broken:
        def query(self, context, limits):
            raise OSError("the disk is gone")

    method = Spectra(None, SpectraRetrieval(FixedLibrary(Broken())))
    for _ in range(2):  # a request that ended is forgotten
        assert drafts(method, [1, 2, 3, 1, 2]) == drafts(SpectraCore(), [1, 2, 3, 1, 2]) != []
    assert "spectra-retrieval failed" in caplog.text


@pytest.mark.parametrize("mode", MODES)
def test_a_corpus_of_the_language_saves_steps_and_another_one_costs_none(mode):
    misleading = [[(i * k) % 48 for k in range(200)] for i in range(5, 20)]
    alone = count_steps(SpectraCore(), TARGET, PROMPT, 120)
    assert count_steps(spectra(CORPUS, mode), TARGET, PROMPT, 120) < alone
    if mode != "paper":
        assert count_steps(spectra(misleading, mode), TARGET, PROMPT, 120) <= alone + 1


def test_sources_keep_their_names_and_dictionaries_have_labels_on_request():
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
