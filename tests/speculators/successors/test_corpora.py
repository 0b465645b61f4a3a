"""The corpus as a source of the mixed model, compared with slow counting."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_store.index.index import FixedLibrary
from retrieval_store.index.memory import MemoryIndex
from speculators.successors.config import CORPUS, SOURCES, TARGET, TEXT, SuccessorConfig
from speculators.successors.corpora import MOST, corpora_of, count_followers, longest_match
from speculators.successors.learning import learn_step
from speculators.successors.mix import CORPUS_COLUMN, TARGET_COLUMN
from speculators.successors.models import SuccessorModels
from speculators.successors.speculator import Successors
from speculators.successors.table import TAIL, learn_text, put_successors
from speculators.testing import HashTarget
from tests.speculators.drafts import tokens_of
from tests.speculators.successors.successor_runs import NO_ANSWERS, PROMPT, SMALL, array, decode, tail_of, view

VOCAB = 6
DOCUMENTS = st.lists(st.lists(st.integers(0, 7), max_size=14), min_size=1, max_size=6)
CONTEXTS = st.lists(st.integers(0, 7), max_size=10)


def model_with(indexes, vocab=VOCAB, config=None):
    model = SuccessorModels(config or SuccessorConfig(), SOURCES).new(1000)
    return model._replace(lookup=model.lookup._replace(corpora=corpora_of(indexes), vocab=vocab))


def followers(model, order):
    lookup = model.lookup
    n = count_followers(lookup, order)
    return dict(zip(lookup.followers[:n].tolist(), lookup.counts[:n].tolist(), strict=True))


@given(st.lists(DOCUMENTS, max_size=3), CONTEXTS)
def test_every_order_up_to_the_longest_match_is_counted_over_all_corpora(corpora, context):
    model = model_with([MemoryIndex(documents) for documents in corpora])
    longest = longest_match(model.lookup, tail_of(context))
    for order in range(1, min(TAIL, len(context)) + 1):
        gram, counts, occurs = context[-order:], Counter(), False
        for document in (document for documents in corpora for document in documents):
            for i in range(len(document) - order + 1):
                if document[i : i + order] == gram:
                    occurs = True
                    counts.update(token for token in document[i + order :][:1] if token < VOCAB)
        assert occurs == (order <= longest)
        if occurs:
            assert followers(model, order) == counts


def test_the_number_of_corpora_is_bounded_and_too_large_ones_are_skipped():
    class Large:
        suffixes = None

    indexes = [Large(), *(MemoryIndex([[1, i]]) for i in range(MOST + 1))]
    assert len(corpora_of([])) == len(corpora_of(indexes)) == MOST
    model = model_with(indexes, vocab=99)
    longest_match(model.lookup, tail_of([1]))
    assert sorted(followers(model, 1)) == list(range(MOST))


class ReplacedLibrary:
    """A library whose indexes are replaced, by namespace."""

    def __init__(self):
        self.indexes = {}

    def of(self, namespace):
        return self.indexes.get(namespace, ())


def test_a_request_drafts_only_from_the_current_texts_of_its_namespace():
    library = ReplacedLibrary()
    speculator = Successors(SMALL, (TEXT, CORPUS), library=library)

    def drafted(request):
        return set(tokens_of(speculator.propose(request, 8)))

    mine, other = view(PROMPT, 1, namespace="mine"), view(PROMPT, 1, namespace="other")
    library.indexes["mine"] = (MemoryIndex([[PROMPT[-1], 41, 42]]),)
    speculator.begin(mine)
    assert {41, 42} <= drafted(mine)
    library.indexes = {"mine": (MemoryIndex([[PROMPT[-1], 43], [PROMPT[-1], 48]]),)}
    assert 43 in drafted(mine)
    assert not drafted(mine) & {41, 48}, "a replaced text, and an id that the target does not have"
    speculator.end(mine)
    speculator.begin(other)
    assert not drafted(other) & {41, 42, 43}


@pytest.mark.parametrize("sources", [SOURCES, (CORPUS, TARGET), (TEXT, CORPUS)])
def test_texts_equal_plain_decoding_and_every_source_is_named(sources):
    target = HashTarget(48, n_successors=2)
    library = FixedLibrary(MemoryIndex([target.generate(PROMPT, 400)]))
    run = decode(Successors(SMALL, sources, library=library), target, view(PROMPT), 12)
    assert len(run.output) > 40
    named = {name for (branch,) in filter(None, run.drafts) for names in branch.proposers for name in names}
    assert named == set(sources)


@pytest.mark.parametrize("right", SOURCES)
def test_trust_moves_to_the_source_that_is_right(right):
    """Each source knows one successor of every pair; only one of them continues the text."""
    config = SuccessorConfig(text_orders=(2,), target_orders=(2,), corpus_orders=(2,), top_k=1)
    pairs = {(1, 2): 3, (2, 3): 1, (3, 1): 2}
    documents = [[*pair, token if right == CORPUS else 5] for pair, token in pairs.items()]
    model = model_with([MemoryIndex(documents)], config=config)
    for pair, token in pairs.items():
        learn_text(model.text, array([*pair, token if right == TEXT else 0]), 2)
        answer = array([token if right == TARGET else 4])
        put_successors(model.target, tail_of(pair), answer, np.full(1, 0.9, np.float32))

    def trusts():
        return dict(zip(SOURCES, model.trusts[2, [1, TARGET_COLUMN, CORPUS_COLUMN + 1]].tolist(), strict=True))

    before, text = trusts(), array([1, 2, 3] * 40)
    learn_step(SuccessorModels.addressed(model).addresses, text, 0, 0.1, len(text), *NO_ANSWERS, 0.9, len(text))
    after = trusts()
    assert after[right] > max(0.8, before[right])
    assert all(after[name] <= before[name] for name in SOURCES if name != right)
