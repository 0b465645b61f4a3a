"""SPECTRA: what its two parts make of one budget."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.errors import ConfigError, UnknownMethodError
from engine.protocol import RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.scheduling.stats import count_sources
from engine.tree import ROOT
from retrieval_store.index.index import FixedLibrary
from retrieval_store.index.memory import MemoryIndex
from speculators.registry import SpeculatorOptions, create
from speculators.spectra.core import SpectraCore, SpectraCoreConfig
from speculators.spectra.retrieval import SpectraRetrieval
from speculators.spectra.speculator import Spectra, SpectraConfig
from speculators.testing import HashTarget

MODES = ("score", "priority", "paper")
TOKENS = st.lists(st.integers(0, 5), min_size=1, max_size=40)
DOCUMENTS = st.lists(TOKENS, max_size=5)


def spectra(documents, mode="score", core=None, **config):
    retrieval = SpectraRetrieval(FixedLibrary(MemoryIndex(documents)))
    return Spectra(core, retrieval, SpectraConfig(mode, **config))


def view(context, scope="", request_id=0):
    return RequestView.of(request_id, Request(context, SamplingParams(), scope=scope), 512)


def drafts(method, context, budget=64):
    request = view(context)
    method.begin(request)
    branches = method.propose(request, budget)
    method.end(request)
    return branches


def tree_paths(tree, guesses_only=True):
    """The path of every node, probes left out."""
    paths = []
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), token))
    return {path for path, probe in zip(paths, tree.probe, strict=True) if not (probe and guesses_only)}


@given(DOCUMENTS, TOKENS, st.sampled_from(MODES), st.integers(0, 70), st.integers(0, 20))
def test_the_draft_never_has_more_nodes_than_the_budget_and_probes_keep_their_share(
    documents, context, mode, budget, reserve
):
    method = spectra(documents, mode, reserve=reserve)
    tree = compose(drafts(method, context, budget), 10_000)
    assert len(tree) <= budget
    assert len(tree_paths(tree)) <= method._core.guess_nodes(budget)
    n_probes = len(compose(drafts(SpectraCore(), context, budget), 10_000).probe_ends)
    share = min(int(budget * 0.4) // 4, 15)
    assert len(tree.probe_ends) >= min(n_probes, share)


@given(DOCUMENTS, TOKENS, st.sampled_from(("priority", "paper")), st.integers(0, 70))
def test_without_a_reserve_every_internal_guess_keeps_its_nodes(documents, context, mode, budget):
    alone = tree_paths(compose(drafts(SpectraCore(), context, budget), budget))
    assert alone <= tree_paths(compose(drafts(spectra(documents, mode, reserve=0), context, budget), budget))


@given(DOCUMENTS, TOKENS, st.integers(0, 70))
def test_by_score_an_internal_guess_only_gives_way_to_a_likelier_node(documents, context, budget):
    method = spectra(documents)
    request = view(context)
    method.begin(request)
    core = SpectraCore()
    core.begin(view(context))
    kept = tree_paths(compose(method.propose(request, budget), budget))
    candidates = method._drafted.get(0)
    if candidates is not None:
        reach, paths = candidates.reach(), []
        for token, parent in zip(candidates.tokens, candidates.parents, strict=True):
            paths.append((*(paths[parent] if parent != ROOT else ()), token))
        worst = min((reach[i] for i, path in enumerate(paths) if path in kept), default=1.0)
        assert all(reach[i] <= worst for i, path in enumerate(paths) if path not in kept)
    if candidates is None or len(candidates.tokens) <= method._core.guess_nodes(budget):
        assert tree_paths(compose(core.propose(request, budget), budget)) <= kept


def test_by_priority_retrieval_is_sure_of_its_reserve_and_no_more():
    context = [*range(10, 14)] * 3 + [i for n in range(20, 36) for i in (1, n, n + 20, n + 40, n + 60)] + [1]
    documents = [[1, 200 + i, 300 + i, 400 + i] for i in range(30)]
    core = SpectraCoreConfig(backward_tokens=4)
    found = {}
    for reserve in (0, 1, 3, 9):
        branches = drafts(spectra(documents, "priority", core, reserve=reserve), context, 60)
        counts = count_sources(compose(branches, 60), ())
        found[reserve] = counts.get("spectra-retrieval")
        assert counts["spectra-core"].drafted + (found[reserve].drafted if found[reserve] else 0) == 36
    assert found[0] is None
    assert [found[n].drafted for n in (1, 3, 9)] == [4, 12, 12]  # at most a third of the 36 that guesses may take


def test_what_retrieval_leaves_of_its_reserve_goes_back_to_internal_guesses():
    context = [i for n in range(20, 36) for i in (1, n, n + 20, n + 40, n + 60)] + [1]
    branches = drafts(spectra([[1, 200]], "priority"), context, 60)
    counts = count_sources(compose(branches, 60), ())
    assert (counts["spectra-retrieval"].drafted, counts["spectra-core"].drafted) == (1, 35)


def test_the_published_order_appends_chains_and_cuts_the_list_at_g():
    core = replace(SpectraCoreConfig.paper(), learn_from_prompt=True, max_guesses=4)
    context = [1, 2, 3, 4, 5, 1]
    documents = [[1, 10, 11], [1, 10, 11], [1, 10, 12], [1, 20], [1, 30]]
    branches = [b for b in drafts(spectra(documents, "paper", core), context, 128) if not b.probe]
    assert [b.source for b in branches] == ["spectra-core"] * 2 + ["spectra-retrieval"] * 2
    assert [tuple(b.tokens) for b in branches[2:]] == [(10, 11), (20,)]


@given(TOKENS, st.sampled_from(MODES), st.integers(0, 70))
def test_with_nothing_to_retrieve_the_draft_is_the_cores(context, mode, budget):
    expected = drafts(SpectraCore(), context, budget)
    assert drafts(spectra([], mode), context, budget) == expected
    assert drafts(Spectra(None, SpectraRetrieval(FixedLibrary()), SpectraConfig(mode)), context, budget) == expected
    assert drafts(Spectra(config=SpectraConfig(mode)), context, budget) == expected


def test_a_failing_retrieval_leaves_the_core_at_work(caplog):
    class Broken:
        def query(self, context, limits):
            raise OSError("the disk is gone")

    method = Spectra(None, SpectraRetrieval(FixedLibrary(Broken())))
    context = [1, 2, 3, 1, 2]
    for _ in range(2):  # a request that ended is forgotten
        assert drafts(method, context) == drafts(SpectraCore(), context) != []
    assert "spectra-retrieval failed" in caplog.text


@pytest.mark.parametrize("budget", [0, 1, 7, 16, 64])
@pytest.mark.parametrize("mode", MODES)
def test_the_text_is_the_plain_one_and_a_corpus_saves_steps(decode, mode, budget):
    target = HashTarget(48, n_successors=3)
    prompt = [3, 1, 4, 1, 5]
    corpus = [target.generate([i, i + 1], 60) for i in range(20)]
    tokens, n_steps = decode(spectra(corpus, mode), target, prompt, 120, budget)
    alone, n_alone = decode(SpectraCore(), target, prompt, 120, budget)
    assert tokens == alone == target.generate(prompt, 120)
    assert n_steps < n_alone if budget > 4 else n_steps <= n_alone


@pytest.mark.parametrize("mode", ["score", "priority"])
def test_a_corpus_in_another_language_costs_no_steps(decode, mode):
    target = HashTarget(48, n_successors=3)
    misleading = [[(i * k) % 48 for k in range(200)] for i in range(5, 20)]
    prompts = [[i, 3 * i + 1, 7] for i in range(12)]
    with_it = sum(decode(spectra(misleading, mode), target, prompt, 100, 64)[1] for prompt in prompts)
    alone = sum(decode(SpectraCore(), target, prompt, 100, 64)[1] for prompt in prompts)
    assert with_it <= alone * 1.01


def test_sources_keep_their_names_and_dictionaries_are_told_apart_on_request(decode_steps):
    target = HashTarget(48, n_successors=3)
    corpus = [target.generate([i, i + 1], 60) for i in range(20)]

    def sources(method):
        request = view([3, 1, 4, 1, 5])
        names = set()
        for step in decode_steps(method, target, request, 60):
            names |= set(count_sources(step.outcome.tree, step.outcome.accepted))
        return names

    labels = {"spectra-core.forward", "spectra-core.backward"}
    labelled = SpectraCoreConfig(label_dictionaries=True)
    for mode in MODES:
        assert sources(spectra(corpus, mode)) == {"spectra-core", "spectra-retrieval"}
        assert sources(spectra(corpus, mode, labelled)) == labels | {"spectra-retrieval"}
    assert sources(SpectraCore(labelled)) == labels
    assert sources(SpectraCore()) == {"spectra-core"}


def test_labels_change_no_draft(decode):
    target, prompt = HashTarget(48, n_successors=2), [3, 1, 4, 1, 5]
    plain, labelled = (SpectraCoreConfig(label_dictionaries=label) for label in (False, True))
    assert decode(SpectraCore(plain), target, prompt, 120) == decode(SpectraCore(labelled), target, prompt, 120)


def test_what_was_learnt_in_one_scope_changes_no_draft_of_another(decode_steps):
    target = HashTarget(48, n_successors=3)
    method = spectra([target.generate([i, i + 1], 60) for i in range(20)])
    context = target.generate([5], 30)

    def first():
        request = view(context, "b", 7)
        method.begin(request)
        branches = method.propose(request, 16)
        method.end(request)
        return [(list(b.tokens), b.scores) for b in branches]

    before = first()
    for _ in decode_steps(method, target, view([3, 1, 4], "a"), 60):
        pass
    assert method._estimates._shared["a"].tried
    assert first() == before
    assert (method._drafted, method._core._states) == ({}, {})


def test_the_registry_makes_both_parts_from_the_options():
    library = FixedLibrary(MemoryIndex([[1, 2, 3]]))
    options = SpeculatorOptions(retrieval=lambda: library, spectra_core=SpectraCoreConfig(probe_top_k=5))
    method = create("spectra", options)
    assert (method.name, method.needs.probe_top_k) == ("spectra", 5)
    assert [(b.source, list(b.tokens)) for b in drafts(method, [1, 2]) if not b.probe] == [("spectra-retrieval", [3])]
    assert [list(b.tokens) for b in drafts(create("spectra-retrieval", options), [1, 2])] == [[3]]
    assert {b.source for b in drafts(create("spectra"), [1, 2, 3, 1, 2])} == {"spectra-core"}
    with pytest.raises(UnknownMethodError, match=r"'spectra-retrieval' needs a corpus: give --retrieval DIR"):
        create("spectra-retrieval")


@pytest.mark.parametrize("bad", [{"mode": "best"}, {"reserve": -1}])
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ConfigError, match=r"spectra: .* must be"):
        SpectraConfig(**bad)
