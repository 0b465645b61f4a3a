from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.composer import compose
from engine.errors import ConfigError, UnknownMethodError
from engine.protocol import Branch, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from retrieval_store.index.index import FixedLibrary
from retrieval_store.index.memory import MemoryIndex
from speculators.corpus.rest import Rest, RestConfig
from speculators.registry import SpeculatorOptions, create
from speculators.testing import HashTarget

DOCUMENTS = st.lists(st.lists(st.integers(0, 3), max_size=25), max_size=5)
CONTEXT = st.lists(st.integers(0, 3), min_size=1, max_size=20)


def propose(documents, context, config=None, budget=64):
    request = RequestView.of(0, Request(context, SamplingParams()), 64)
    return Rest(FixedLibrary(MemoryIndex(documents)), config).propose(request, budget)


def paths(branch: Branch) -> list[tuple[int, ...]]:
    """The path of every node."""
    made: list[tuple[int, ...]] = []
    assert branch.parents is not None
    for token, parent in zip(branch.tokens, branch.parents, strict=True):
        assert parent < len(made)
        made.append((*(made[parent] if parent >= 0 else ()), token))
    return made


def published(documents, context, n_nodes=64):
    """REST as its paper and code have it: the counts of all prefixes of what follows the longest suffix of 16 to 2
    tokens, of which the ``n_nodes`` most frequent are the draft; which of equals are drafted it leaves open."""
    for n in range(min(16, len(context)), 1, -1):
        continuations = [
            tuple(document[i + n : i + n + 10])
            for document in documents
            for i in range(len(document) - n + 1)
            if document[i : i + n] == context[-n:]
        ]
        if continuations:
            trie = Counter(c[:k] for c in continuations for k in range(1, len(c) + 1))
            return trie, sorted(trie.values(), reverse=True)[:n_nodes]
    return Counter(), []


@given(DOCUMENTS, CONTEXT, st.integers(1, 20))
def test_with_the_papers_settings_the_draft_is_the_papers(documents, context, budget):
    trie, best = published(documents, context, budget)
    drafted = [path for branch in propose(documents, context, RestConfig.paper(), budget) for path in paths(branch)]
    assert sorted((trie[path] for path in drafted), reverse=True) == best
    assert len(set(drafted)) == len(drafted)


@given(DOCUMENTS, CONTEXT)
def test_the_papers_scores_are_shares_of_the_parents_count(documents, context):
    trie, _ = published(documents, context)
    for branch in propose(documents, context, RestConfig.paper()):
        children = Counter()
        for path, score in zip(paths(branch), branch.scores, strict=True):
            if path[:-1]:
                assert score == pytest.approx(trie[path] / trie[path[:-1]])
            else:
                children[path] = score
        assert sum(children.values()) <= 1 + 1e-9


@given(DOCUMENTS, CONTEXT, st.integers(0, 70))
def test_the_draft_is_one_tree_within_the_budget_and_its_scores_are_probabilities(documents, context, budget):
    branches = propose(documents, context, budget=budget)
    for branch in branches:
        made = paths(branch)
        assert len(set(made)) == len(made) == len(branch.scores)
        assert all(0 < score < 1 for score in branch.scores)
        for parent in {path[:-1] for path in made}:
            siblings = [s for p, s in zip(made, branch.scores, strict=True) if p[:-1] == parent]
            assert sum(siblings) < 1 + 1e-3
    tree = compose(branches, budget)
    assert len(tree) == sum(len(branch.tokens) for branch in branches) <= budget


def test_what_follows_the_last_token_fills_what_a_long_match_leaves():
    documents = [[1, 2, 3, 4], [9, 3, 5], [9, 3, 5], [9, 3, 6]]
    (branch,) = propose(documents, [1, 2, 3])
    assert paths(branch) == [(4,), (5,), (6,)]
    assert branch.scores == sorted(branch.scores, reverse=True)
    (alone,) = propose(documents, [1, 2, 3], RestConfig(fill=False))
    assert paths(alone) == [(4,)]
    (cut,) = propose(documents, [1, 2, 3], budget=2)
    assert paths(cut) == [(4,), (5,)]


def test_a_node_found_twice_keeps_the_longer_matchs_place_and_score():
    documents = [[1, 2, 3, 4, 5], [9, 3, 4, 6], [9, 3, 4, 6]]
    (branch,) = propose(documents, [1, 2, 3])
    assert paths(branch) == [(4,), (4, 5), (4, 6)]
    (alone,) = propose(documents, [1, 2, 3], RestConfig(fill=False))
    assert branch.scores[:2] == alone.scores


def test_a_share_is_trusted_more_the_more_it_rests_on():
    def first(documents, context):
        (branch,) = propose(documents, context, RestConfig(fill=False))
        return branch.scores[0]

    once, often = first([[1, 2, 3]], [1, 2]), first([[1, 2, 3]] * 5, [1, 2])
    longer = first([[7, 8, 9, 1, 2, 3]], [7, 8, 9, 1, 2])
    assert once < longer < often < 1


@pytest.mark.parametrize("budget", [0, 1, 7, 64])
@pytest.mark.parametrize("config", [RestConfig(), RestConfig.paper()])
def test_decoding_gives_the_plain_text_in_fewer_steps(decode, config, budget):
    target = HashTarget(48, n_successors=2)
    corpus = [target.generate([i, i + 1], 60) for i in range(20)]
    prompt = [3, 1, 4, 1, 5]
    tokens, n_steps = decode(Rest(FixedLibrary(MemoryIndex(corpus)), config), target, prompt, 120, budget)
    assert tokens == target.generate(prompt, 120)
    assert n_steps < 60 if budget > 1 else n_steps <= 119


def test_without_a_corpus_the_flag_is_named():
    with pytest.raises(UnknownMethodError, match=r"'rest' needs a corpus: give --retrieval DIR"):
        create("rest")
    with pytest.raises(UnknownMethodError, match="--retrieval"):
        create("pld+rest")


def test_the_registry_asks_the_options_for_the_library(new_request):
    library = FixedLibrary(MemoryIndex([[1, 2, 3]]))
    options = SpeculatorOptions(retrieval=lambda: library, rest=RestConfig(fill=False))
    method = create("rest", options)
    assert (method.name, [list(b.tokens) for b in method.propose(new_request([1, 2]), 64)]) == ("rest", [[3]])


def test_tokens_and_parents_are_python_ints():
    rng = np.random.default_rng(0)
    (branch,) = propose(rng.integers(0, 9, (20, 50)), [3, 4])
    assert {type(value) for value in (*branch.tokens, *branch.parents)} == {int}


@pytest.mark.parametrize(
    "bad",
    [
        {"suffix_min": 0},
        {"suffix_min": 3, "suffix_max": 2},
        {"suffix_max": 17},
        {"draft_tokens": 0},
        {"draft_tokens": 17},
        {"samples": 0},
        {"prior": -1},
    ],
)
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(ConfigError, match="rest: "):
        RestConfig(**bad)
