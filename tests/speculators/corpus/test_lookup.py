"""Drafting from whatever a library hands out: tenants, replaced indexes, several indexes at once, none at all."""

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from retrieval_store.index.index import FixedLibrary, Limits
from retrieval_store.index.memory import MemoryIndex
from speculators.corpus.lookup import UnigramCache
from speculators.corpus.rest import Rest, RestConfig
from speculators.spectra.retrieval import SpectraRetrieval, SpectraRetrievalConfig

METHODS = {
    "rest": Rest,
    "rest, published": lambda library: Rest(library, RestConfig.paper()),
    "spectra-retrieval": SpectraRetrieval,
    "spectra-retrieval, published": lambda library: SpectraRetrieval(library, SpectraRetrievalConfig.paper()),
}
TOKENS = st.lists(st.integers(0, 5), min_size=1, max_size=12)


class Shelves:
    """A library whose indexes may be replaced."""

    def __init__(self, **shelves):
        self.shelves = shelves

    def of(self, namespace):
        return self.shelves.get(namespace, ())


def draft(method, context, namespace="", budget=64):
    request = RequestView.of(0, Request(context, SamplingParams(), namespace=namespace), 1000)
    method.begin(request)
    branches = method.propose(request, budget)
    method.end(request)
    return branches


def drafted(method, context, namespace="", budget=64):
    return [int(token) for branch in draft(method, context, namespace, budget) for token in branch.tokens]


@pytest.fixture(params=METHODS)
def make(request):
    return METHODS[request.param]


def test_the_text_of_one_namespace_is_never_drafted_for_another(make):
    shared = MemoryIndex([[1, 2, 3]])
    library = Shelves(a=(MemoryIndex([[1, 2, 70]]), shared), b=(MemoryIndex([[1, 2, 80]]), shared))
    library.shelves[""] = (shared,)
    method = make(library)
    for _ in range(2):  # the second time from what is remembered
        assert set(drafted(method, [1, 2], "a")) == {70, 3}
        assert set(drafted(method, [1, 2], "b")) == {80, 3}
        assert drafted(method, [1, 2]) == [3]
        assert set(drafted(method, [7, 2], "a")) <= {70, 3}
        assert drafted(method, [1, 2], "nobody's") == []


@given(st.lists(st.tuples(st.sampled_from("ab"), TOKENS, st.booleans()), max_size=20), st.lists(TOKENS, max_size=3))
def test_tenants_stay_apart_through_any_row_of_drafts_and_replacements(steps, shared):
    """Tenant a's words are 10 to 15, tenant b's 20 to 25, everybody's 0 to 5; contexts mix them."""
    base = MemoryIndex(shared)
    words = {"a": 10, "b": 20}
    library = Shelves(a=(base,), b=(base,))
    method = Rest(library)
    for namespace, tokens, replaces in steps:
        own = [word + words[namespace] for word in tokens]
        if replaces:
            library.shelves[namespace] = (MemoryIndex([[*tokens, *own], own]), base)
        for context in (own, tokens, [*tokens, 12], [*tokens, 22]):
            allowed = set(range(6)) | set(range(words[namespace], words[namespace] + 6))
            assert set(drafted(method, context, namespace)) <= allowed


def test_a_replaced_index_is_used_from_the_next_draft_on_and_let_go(make):
    library = Shelves()
    method = make(library)
    assert drafted(method, [1, 2]) == []
    first = MemoryIndex([[1, 2, 3], [9, 2, 4]])
    library.shelves[""] = (first,)
    assert 3 in drafted(method, [1, 2])
    gone = weakref.ref(first)
    library.shelves[""] = (MemoryIndex([[1, 2, 5], [9, 2, 6]]),)
    assert set(drafted(method, [1, 2])) <= {5, 6}
    assert drafted(method, [1, 2])[0] == 5
    del first
    gc.collect()
    assert gone() is None
    library.shelves.clear()
    assert drafted(method, [1, 2]) == []


def test_a_library_without_indexes_or_with_empty_ones_drafts_nothing(make):
    assert draft(make(FixedLibrary()), [1, 2]) == []
    assert draft(make(FixedLibrary(MemoryIndex([]))), [1, 2]) == []
    assert draft(make(FixedLibrary(MemoryIndex([]), MemoryIndex([[1, 2, 3]]))), [1, 2], budget=0) == []
    assert drafted(make(FixedLibrary(MemoryIndex([]), MemoryIndex([[1, 2, 3]]))), [1, 2]) == [3]


def test_the_longest_match_comes_first_whichever_index_has_it(make):
    short, long = MemoryIndex([[2, 3, 50]]), MemoryIndex([[1, 2, 3, 60]])
    for indexes in ((short, long), (long, short)):
        assert drafted(make(FixedLibrary(*indexes)), [1, 2, 3])[0] == 60


def test_among_equal_matches_the_more_specific_index_comes_first(make):
    one, other = MemoryIndex([[1, 2, 50]]), MemoryIndex([[1, 2, 60]])
    assert drafted(make(FixedLibrary(one, other)), [1, 2]) == [50, 60]
    assert drafted(make(FixedLibrary(other, one)), [1, 2]) == [60, 50]
    assert drafted(make(FixedLibrary(other, one)), [1, 2], budget=1) == [60]


def test_shorter_matches_of_other_indexes_fill_what_the_longest_leaves():
    library = FixedLibrary(MemoryIndex([[2, 3, 50]]), MemoryIndex([[1, 2, 3, 60]]), MemoryIndex([[3, 70]]))
    assert drafted(SpectraRetrieval(library), [1, 2, 3]) == [60, 50, 70]
    assert drafted(SpectraRetrieval(library), [1, 2, 3], budget=2) == [60, 50]
    alone = SpectraRetrieval(library, SpectraRetrievalConfig(fill=False))
    assert drafted(alone, [1, 2, 3]) == [60]


@given(st.lists(st.lists(TOKENS, max_size=4), max_size=3), TOKENS, st.integers(0, 70))
def test_drafts_of_several_indexes_are_one_tree_of_distinct_paths_within_the_budget(corpora, context, budget):
    for branch in draft(SpectraRetrieval(FixedLibrary(*map(MemoryIndex, corpora))), context, budget=budget):
        paths = []
        children = {}
        for token, parent, score in zip(branch.tokens, branch.parents, branch.scores, strict=True):
            above = paths[parent] if parent >= 0 else ()
            paths.append((*above, token))
            children.setdefault(above, []).append(score)
        assert len(set(paths)) == len(paths) <= budget
        assert all(0 < score < 1 for score in branch.scores)
        assert all(sum(scores) < 1 + 1e-3 for scores in children.values())


def test_spectra_retrieval_matches_eight_tokens_and_rest_sixteen(new_request):
    documents = [[*range(30, 37), 90, *range(12), 50], [*range(4, 12), 60], [*range(4, 12), 60]]
    library = FixedLibrary(MemoryIndex(documents))
    context = list(range(12))
    assert drafted(SpectraRetrieval(library), context)[0] == 60  # behind eight tokens: twice this, once the other
    assert drafted(Rest(library), context)[0] == 50  # behind twelve: only this


class Counted(MemoryIndex):
    """Counts what it is asked."""

    n_queries = 0

    def query(self, context, limits):
        self.n_queries += 1
        return super().query(context, limits)


def test_what_follows_a_token_is_looked_up_once_per_index():
    index = Counted([[1, 2, 3], [4, 2, 5]])
    method = SpectraRetrieval(FixedLibrary(index))
    for _ in range(3):
        assert drafted(method, [1, 2]) == [3, 5]
    assert index.n_queries == 3 + 1


def test_what_a_full_draft_has_no_room_for_is_not_looked_up():
    index = Counted([[1, 2, 3], [4, 2, 5]])
    assert drafted(SpectraRetrieval(FixedLibrary(index)), [1, 2], budget=1) == [3]
    assert index.n_queries == 1


def test_remembered_answers_do_not_pile_up(monkeypatch):
    monkeypatch.setattr("speculators.corpus.lookup.MAX_KEPT", 10)
    indexes = [MemoryIndex([[i, i + n] for i in range(60)]) for n in (1, 2, 3)]
    after = UnigramCache(Limits(1, 1, 200, 10, 64))
    for _ in range(2):
        for token in range(60):
            for n, index in enumerate(indexes, start=1):
                found = after.ask(index, token)
                assert found.tokens == [token + n]
            assert len(after) <= 10
    assert len(after) == 10
    del index, indexes
    gc.collect()
    assert len(after) == 0


def test_tokens_that_the_target_does_not_have_are_not_drafted():
    library = FixedLibrary(MemoryIndex([[5, 6, 7, 900, 8], [5, 6, 901, 9], [6, 7, 8]]))
    drafter = Rest(library)
    for vocab_size, drafted in ((1000, {7, 900, 901, 8, 9}), (100, {7, 8})):
        request = RequestView.of(0, Request([5, 6], SamplingParams()), vocab_size)
        (branch,) = drafter.propose(request, 64)
        assert set(branch.tokens) == drafted
        assert all(parent < node for node, parent in enumerate(branch.parents))
