"""REST against counting every prefix, and drafting from whatever a library returns: tenants, replaced indexes."""

from __future__ import annotations

import gc
import weakref
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from retrieval_store.index.index import FixedLibrary
from retrieval_store.index.memory import MemoryIndex
from speculators.corpus.rest import Rest, RestConfig
from speculators.spectra.retrieval import SpectraRetrieval, SpectraRetrievalConfig
from tests.speculators.drafts import first_draft, paths_of, tokens_of, view

DOCUMENTS = st.lists(st.lists(st.integers(0, 3), max_size=25), max_size=5)
CONTEXT = st.lists(st.integers(0, 3), min_size=1, max_size=20)


def propose(documents, context, config=None, budget=64):
    return Rest(FixedLibrary(MemoryIndex(documents)), config).propose(view(context), budget)


def published(documents, context):
    """REST as published: the counts of all prefixes of what follows the longest suffix of 16 to 2 tokens."""
    for n in range(min(16, len(context)), 1, -1):
        continuations = [
            tuple(document[i + n : i + n + 10])
            for document in documents
            for i in range(len(document) - n + 1)
            if document[i : i + n] == context[-n:]
        ]
        if continuations:
            return Counter(c[:k] for c in continuations for k in range(1, len(c) + 1))
    return Counter()


@given(DOCUMENTS, CONTEXT, st.integers(1, 20))
def test_rest_with_the_papers_settings_drafts_as_the_paper(documents, context, budget):
    trie = published(documents, context)
    branches = propose(documents, context, RestConfig.paper(), budget)
    paths = paths_of(branches)
    assert sorted((trie[path] for path in paths), reverse=True) == sorted(trie.values(), reverse=True)[:budget]
    for path, score in zip(paths, (score for branch in branches for score in branch.scores), strict=True):
        assert len(path) == 1 or score == pytest.approx(trie[path] / trie[path[:-1]])


@pytest.mark.parametrize(
    ("documents", "budget", "filled", "alone"),
    [
        ([[1, 2, 3, 4], [9, 3, 5], [9, 3, 5], [9, 3, 6]], 64, [(4,), (5,), (6,)], [(4,)]),
        ([[1, 2, 3, 4], [9, 3, 5], [9, 3, 5], [9, 3, 6]], 2, [(4,), (5,)], [(4,)]),
        # A node that both matches have keeps the place and the score of the longer match.
        ([[1, 2, 3, 4, 5], [9, 3, 4, 6], [9, 3, 4, 6]], 64, [(4,), (4, 5), (4, 6)], [(4,), (4, 5)]),
    ],
)
def test_continuations_of_the_last_token_fill_the_rest_of_the_budget(documents, budget, filled, alone):
    [branch] = propose(documents, [1, 2, 3], budget=budget)
    [long] = propose(documents, [1, 2, 3], RestConfig(fill=False), budget)
    assert (paths_of([branch]), paths_of([long])) == (filled, alone)
    assert branch.scores[: len(alone)] == long.scores


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


def drafted(method, context, namespace="", budget=64):
    return tokens_of(first_draft(method, view(context, vocab_size=1000, namespace=namespace), budget))


@pytest.fixture(params=METHODS)
def make(request):
    return METHODS[request.param]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), TOKENS, st.booleans()), max_size=20),
    st.lists(TOKENS, max_size=3),
    st.sampled_from(sorted(METHODS)),
)
def test_tenants_stay_apart_through_any_sequence_of_drafts_and_replacements(steps, shared, name):
    """Tenant a's words are 10 to 15, tenant b's 20 to 25, everybody's 0 to 5; contexts mix them."""
    base = MemoryIndex(shared)
    words = {"a": 10, "b": 20}
    library = Shelves(a=(base,), b=(base,))
    method = METHODS[name](library)
    for namespace, tokens, replaces in steps:
        own = [word + words[namespace] for word in tokens]
        if replaces:
            library.shelves[namespace] = (MemoryIndex([[*tokens, *own], own]), base)
        for context in (own, tokens, [*tokens, 12], [*tokens, 22]):
            allowed = set(range(6)) | set(range(words[namespace], words[namespace] + 6))
            assert set(drafted(method, context, namespace)) <= allowed
    assert drafted(method, [10, 20], "nobody's") == []


def test_a_replaced_index_is_used_from_the_next_draft_on_and_released(make):
    library = Shelves()
    method = make(library)
    first = MemoryIndex([[1, 2, 3], [9, 2, 4]])
    library.shelves[""] = (first,)
    assert 3 in drafted(method, [1, 2])
    old = weakref.ref(first)
    library.shelves[""] = (MemoryIndex([[1, 2, 5], [9, 2, 6]]),)
    assert set(drafted(method, [1, 2])) <= {5, 6}
    assert drafted(method, [1, 2])[0] == 5
    del first
    gc.collect()
    assert old() is None
    library.shelves.clear()
    assert drafted(method, [1, 2]) == []


@pytest.mark.parametrize(
    ("corpora", "context", "budget", "tokens"),
    [
        ([], [1, 2], 64, []),
        ([[]], [1, 2], 64, []),
        ([[], [[1, 2, 3]]], [1, 2], 0, []),
        ([[], [[1, 2, 3]]], [1, 2], 64, [3]),
        ([[[1, 2, 50]], [[1, 2, 60]]], [1, 2], 64, [50, 60]),  # of equal matches the first index is more specific
        ([[[1, 2, 60]], [[1, 2, 50]]], [1, 2], 1, [60]),
    ],
)
def test_indexes_are_drafted_from_in_order(make, corpora, context, budget, tokens):
    assert drafted(make(FixedLibrary(*map(MemoryIndex, corpora))), context, budget=budget) == tokens


def test_shorter_matches_of_other_indexes_fill_the_rest_of_the_budget():
    library = FixedLibrary(MemoryIndex([[2, 3, 50]]), MemoryIndex([[1, 2, 3, 60]]), MemoryIndex([[3, 70]]))
    assert drafted(SpectraRetrieval(library), [1, 2, 3]) == [60, 50, 70]
    assert drafted(SpectraRetrieval(library), [1, 2, 3], budget=2) == [60, 50]
    assert drafted(SpectraRetrieval(library, SpectraRetrievalConfig(fill=False)), [1, 2, 3]) == [60]


@given(st.lists(DOCUMENTS, max_size=3), CONTEXT, st.integers(0, 70), st.sampled_from(sorted(METHODS)))
def test_drafts_are_one_tree_of_distinct_paths_within_the_budget(corpora, context, budget, name):
    branches = first_draft(METHODS[name](FixedLibrary(*map(MemoryIndex, corpora))), view(context), budget)
    for branch in branches:
        paths, children = paths_of([branch]), {}
        for path, score in zip(paths, branch.scores, strict=True):
            children.setdefault(path[:-1], []).append(score)
        assert len(set(paths)) == len(paths) == len(compose(branches, budget)) <= budget
        assert all(0 < score <= 1 for score in branch.scores)
        assert all(sum(scores) < 1 + 1e-3 for scores in children.values())


def test_the_cache_of_last_tokens_is_bounded_and_releases_indexes(monkeypatch):
    monkeypatch.setattr("speculators.corpus.lookup.MAX_CACHED", 10)
    indexes = [MemoryIndex([[i, i + n] for i in range(60)]) for n in (1, 2, 3)]
    rest = Rest(FixedLibrary())
    for _ in range(2):
        for token in range(60):
            for n, index in enumerate(indexes, start=1):
                assert rest.after_token(index, token).tokens == [token + n]
            assert sum(map(len, rest._answers.values())) <= 10
    del index, indexes
    gc.collect()
    assert len(rest._answers) == 0


@pytest.mark.parametrize(("vocab_size", "tokens"), [(1000, {7, 900, 901, 8, 9}), (100, {7, 8})])
def test_tokens_that_the_target_does_not_have_are_not_drafted(vocab_size, tokens):
    library = FixedLibrary(MemoryIndex([[5, 6, 7, 900, 8], [5, 6, 901, 9], [6, 7, 8]]))
    [branch] = Rest(library).propose(view([5, 6], vocab_size=vocab_size), 64)
    assert set(branch.tokens) == tokens
