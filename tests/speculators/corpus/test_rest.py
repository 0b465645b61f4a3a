"""REST against counting every prefix of every continuation."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.protocol import Branch
from retrieval_store.index.index import FixedLibrary
from retrieval_store.index.memory import MemoryIndex
from speculators.corpus.rest import Rest, RestConfig
from tests.support.drafts import Path, paths_of, view

DOCUMENTS = st.lists(st.lists(st.integers(0, 3), max_size=25), max_size=5)
CONTEXT = st.lists(st.integers(0, 3), min_size=1, max_size=20)


def propose(documents, context, config: RestConfig | None = None, budget: int = 64) -> list[Branch]:
    return Rest(FixedLibrary(MemoryIndex(documents)), config).propose(view(context), budget)


def published(documents: list[list[int]], context: list[int]) -> Counter[Path]:
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
def test_with_the_papers_settings_the_draft_is_the_papers(documents, context, budget):
    trie = published(documents, context)
    branches = propose(documents, context, RestConfig.paper(), budget)
    drafted = paths_of(branches)
    assert sorted((trie[path] for path in drafted), reverse=True) == sorted(trie.values(), reverse=True)[:budget]
    assert len(set(drafted)) == len(drafted)
    first = 0.0
    for path, score in zip(drafted, (score for branch in branches for score in branch.scores), strict=True):
        if path[:-1]:
            assert score == pytest.approx(trie[path] / trie[path[:-1]])
        else:
            first += score
    assert first <= 1 + 1e-9


@given(DOCUMENTS, CONTEXT, st.integers(0, 70))
def test_the_draft_is_one_tree_within_the_budget_and_its_scores_are_probabilities(documents, context, budget):
    branches = propose(documents, context, budget=budget)
    for branch in branches:
        made = paths_of([branch])
        assert len(set(made)) == len(made) == len(branch.scores)
        assert all(0 < score < 1 for score in branch.scores)
        for parent in {path[:-1] for path in made}:
            siblings = [s for p, s in zip(made, branch.scores, strict=True) if p[:-1] == parent]
            assert sum(siblings) < 1 + 1e-3
    tree = compose(branches, budget)
    assert len(tree) == sum(len(branch.tokens) for branch in branches) <= budget


@pytest.mark.parametrize(
    ("documents", "budget", "filled", "alone"),
    [
        ([[1, 2, 3, 4], [9, 3, 5], [9, 3, 5], [9, 3, 6]], 64, [(4,), (5,), (6,)], [(4,)]),
        ([[1, 2, 3, 4], [9, 3, 5], [9, 3, 5], [9, 3, 6]], 2, [(4,), (5,)], [(4,)]),
        # A node that both matches have keeps the place and the score of the longer match.
        ([[1, 2, 3, 4, 5], [9, 3, 4, 6], [9, 3, 4, 6]], 64, [(4,), (4, 5), (4, 6)], [(4,), (4, 5)]),
    ],
)
def test_continuations_of_the_last_token_fill_what_a_long_match_leaves(documents, budget, filled, alone):
    [branch] = propose(documents, [1, 2, 3], budget=budget)
    [long] = propose(documents, [1, 2, 3], RestConfig(fill=False), budget)
    assert (paths_of([branch]), paths_of([long])) == (filled, alone)
    assert branch.scores[: len(alone)] == long.scores
    assert branch.scores[1:] == sorted(branch.scores[1:], reverse=True) or len(filled[1]) > 1
