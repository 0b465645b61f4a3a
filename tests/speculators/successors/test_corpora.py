"""A corpus as a part of the mixed model, against slow counting."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_store.index.index import FixedLibrary
from retrieval_store.index.memory import MemoryIndex
from speculators.successors.calls import learn
from speculators.successors.config import CORPUS, TARGET, TEXT, SuccessorConfig
from speculators.successors.corpora import MOST, corpora_of, count_followers, longest_match
from speculators.successors.models import Models
from speculators.successors.speculator import Successors
from speculators.successors.table import TAIL, learn_text, put_successors
from speculators.testing import HashTarget
from tests.speculators.drafts import tokens_of
from tests.speculators.successors.successor_runs import PROMPT, SMALL, array, decode, tail_of, view

VOCAB = 6
ALL = (TEXT, TARGET, CORPUS)
DOCUMENTS = st.lists(st.lists(st.integers(0, 7), max_size=14), min_size=1, max_size=6)
CONTEXTS = st.lists(st.integers(0, 7), max_size=10)


def model_with(*corpora, config=None):
    found = corpora_of([MemoryIndex(documents) for documents in corpora])
    return looking_up(Models(config or SuccessorConfig(), ALL).new(1000), found, VOCAB)


def looking_up(model, corpora, vocab):
    return model._replace(lookup=model.lookup._replace(corpora=corpora, vocab=vocab))


def literal_followers(documents, gram):
    """(whether the gram occurs, counts of the tokens that follow it and that the target has)."""
    found, occurs = Counter(), False
    for document in documents:
        for i in range(len(document) - len(gram) + 1):
            if document[i : i + len(gram)] == gram:
                occurs = True
                found.update(token for token in document[i + len(gram) :][:1] if token < VOCAB)
    return occurs, found


def followers(model, order):
    lookup = model.lookup
    n = count_followers(lookup, order)
    return dict(zip(lookup.followers[:n].tolist(), lookup.counts[:n].tolist(), strict=True))


@given(st.lists(DOCUMENTS, max_size=3), CONTEXTS)
def test_every_order_up_to_the_longest_match_is_counted_over_all_corpora(corpora, context):
    model = model_with(*corpora)
    longest = longest_match(model.lookup, tail_of(context))
    every = [document for documents in corpora for document in documents]
    for order in range(1, min(TAIL, len(context)) + 1):
        occurs, counts = literal_followers(every, context[-order:])
        assert occurs == (order <= longest)
        if occurs:
            assert followers(model, order) == counts


def test_the_number_of_corpora_is_bounded_and_too_large_ones_are_skipped():
    class Large:
        suffixes = None

    indexes = [Large(), *(MemoryIndex([[1, i]]) for i in range(MOST + 1))]
    assert len(corpora_of([])) == len(corpora_of(indexes)) == MOST
    model = looking_up(Models(SuccessorConfig(), ALL).new(10), corpora_of(indexes), 99)
    longest_match(model.lookup, tail_of([1]))
    assert sorted(followers(model, 1)) == list(range(MOST))


class Switching:
    """A library whose indexes are replaced, by namespace."""

    def __init__(self):
        self.indexes = {}

    def of(self, namespace):
        return self.indexes.get(namespace, ())


def drafted(speculator, request):
    return set(tokens_of(speculator.propose(request, 8)))


def test_a_request_drafts_from_its_namespaces_current_texts_alone():
    library = Switching()
    speculator = Successors(SMALL, (TEXT, CORPUS), library=library)
    mine, other = view(PROMPT, 1, namespace="mine"), view(PROMPT, 1, namespace="other")
    library.indexes["mine"] = (MemoryIndex([[PROMPT[-1], 41, 42]]),)
    speculator.begin(mine)
    assert {41, 42} <= drafted(speculator, mine)
    assert speculator.propose(mine, 8)[0].proposers[0] in {(CORPUS,), (TEXT, CORPUS), (TEXT,)}
    library.indexes = {"mine": (MemoryIndex([[PROMPT[-1], 43], [PROMPT[-1], 48]]),)}
    assert 43 in drafted(speculator, mine)
    assert not drafted(speculator, mine) & {41, 48}, "a replaced text, and an id that the target does not have"
    speculator.end(mine)
    speculator.begin(other)
    assert not drafted(speculator, other) & {41, 42, 43}


@pytest.mark.parametrize("sources", [ALL, (CORPUS, TARGET), (TEXT, CORPUS)])
def test_texts_are_those_of_plain_decoding_and_every_part_is_named(sources):
    target = HashTarget(48, n_successors=2)
    plain = target.generate(PROMPT, 400)
    speculator = Successors(SMALL, sources, library=FixedLibrary(MemoryIndex([plain])))
    run = decode(speculator, target, view(PROMPT), 12)
    assert len(run.output) > 40
    named = {name for (branch,) in filter(None, run.drafts) for names in branch.proposers for name in names}
    assert named == set(sources)


@pytest.mark.parametrize("right", ALL)
def test_trust_moves_to_the_source_that_is_right(right):
    """Each source knows one successor of every pair; only one of them continues the text."""
    config = SuccessorConfig(text_orders=(2,), target_orders=(2,), corpus_orders=(2,), top_k=1)
    pairs = {(1, 2): 3, (2, 3): 1, (3, 1): 2}
    model = model_with([[*pair, token if right == CORPUS else 5] for pair, token in pairs.items()], config=config)
    for pair, token in pairs.items():
        learn_text(model.text, array([*pair, token if right == TEXT else 0]), 2)
        shown = array([token if right == TARGET else 4])
        put_successors(model.target, tail_of(pair), shown, np.full(1, 0.9, np.float32))

    def trusts():
        found = model.trusts.text[2, 0, 1], model.trusts.target[2], model.trusts.corpus[2, 0, 1]
        return dict(zip(ALL, map(float, found), strict=True))

    before = trusts()
    text, nothing = array([1, 2, 3] * 40), array([])
    tree = nothing, nothing, nothing, nothing.reshape(0, 1), np.zeros((0, 1), np.float32)
    learn(Models.addressed(model).addresses, text, 0, 0.1, len(text), *tree, 0.9, len(text))
    after = trusts()
    assert after[right] > max(0.8, before[right])
    assert all(after[name] <= before[name] for name in ALL if name != right)
