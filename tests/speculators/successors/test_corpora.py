"""Texts to look up as a part of the mixed model, against slow counting."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import Outcome, RequestView
from engine.request import Request
from engine.sampling.params import SamplingParams
from engine.tree import EMPTY_TREE
from retrieval_store.index.index import FixedLibrary
from retrieval_store.index.memory import MemoryIndex
from speculators.registry import SpeculatorOptions, create
from speculators.spectra.retrieval import SpectraRetrieval, SpectraRetrievalConfig
from speculators.successors.config import CORPUS, TARGET, TEXT, SuccessorConfig
from speculators.successors.corpora import MOST, SAMPLES, corpora_of, corpus_bucket, count_followers, longest_match
from speculators.successors.learning import adapt_trust
from speculators.successors.mix import mix_successors
from speculators.successors.models import Models
from speculators.successors.speculator import Successors
from speculators.successors.table import TAIL, fill_tail, learn_text, put_successors
from speculators.testing import HashTarget
from tests.support.successor_runs import PROMPT, SMALL, decode, view

VOCAB = 6
ALL = (TEXT, TARGET, CORPUS)
DOCUMENTS = st.lists(st.lists(st.integers(0, 7), max_size=14), min_size=1, max_size=6)
CONTEXTS = st.lists(st.integers(0, 7), max_size=10)


def tail_of(tokens):
    tail = np.empty(TAIL, np.int32)
    fill_tail(tail, np.array(tokens, np.int32), len(tokens))
    return tail


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


def test_frequent_contexts_are_sampled_evenly():
    documents = [[1, 2]] * 300 + [[1, 3]] * 100
    model = model_with(documents)
    assert longest_match(model.lookup, tail_of([1])) == 1
    counts = followers(model, 1)
    assert sum(counts.values()) == SAMPLES
    assert counts[2] == 3 * counts[3]


def test_only_so_many_corpora_are_asked_and_those_of_too_many_tokens_are_none():
    class Large:
        suffixes = None

    indexes = [Large(), *(MemoryIndex([[1, i]]) for i in range(MOST + 1))]
    assert len(corpora_of([])) == len(corpora_of(indexes)) == MOST
    model = looking_up(Models(SuccessorConfig(), ALL).new(10), corpora_of(indexes), 99)
    longest_match(model.lookup, tail_of([1]))
    assert sorted(followers(model, 1)) == list(range(MOST))


@given(
    DOCUMENTS,
    st.lists(st.integers(0, 5), min_size=1, max_size=30),
    CONTEXTS,
    st.integers(0, 9),
    st.sampled_from([(1, 2, 3, 4, 5, 6, 7, 8), (2, 4), ()]),
)
def test_the_corpus_takes_its_share_behind_text_and_target(documents, text, context, seed, orders):
    config = SuccessorConfig(corpus_orders=orders, text_width=6)
    model = model_with(documents, config=config)
    rng = np.random.default_rng(seed)
    for trusts in (model.trusts.text, model.trusts.target, model.trusts.corpus):
        trusts[:] = rng.uniform(0.02, 0.98, trusts.shape)
    learn_text(model.text, np.array(text, np.int32), 0)
    put_successors(model.target, tail_of(context or [0]), np.array([1, 4], np.int32), np.array([0.5, 0.2], np.float32))
    n = mix_successors(model, tail_of(context))
    found = dict(zip(model.candidates.ids[:n].tolist(), model.candidates.p[:n].tolist(), strict=True))
    parts = dict(zip(model.candidates.ids[:n].tolist(), model.candidates.from_corpus[:n].tolist(), strict=True))

    bare = looking_up(model, corpora_of([]), VOCAB)
    left, wanted = 1.0, Counter()
    for order in range(min(TAIL, len(context)), 0, -1):  # the stick, with what the other two parts take of it known
        gram = context[-order:]
        if order in config.text_orders:
            counts = Counter(text[i + order] for i in range(len(text) - order) if text[i : i + order] == gram)
            if counts:
                left *= 1.0 - float(bare.trusts.text[order, min(counts.total(), 3) - 1, int(len(counts) == 1)])
        if order in config.target_orders:
            left *= 1.0 - float(bare.trusts.target[order])
        occurs, counts = literal_followers(documents, gram)
        if order in orders and occurs and counts:
            trust = float(model.trusts.corpus[order, corpus_bucket(counts.total()), int(len(counts) == 1)])
            for token, count in counts.items():
                wanted[token] += left * trust * count / counts.total()
            left *= 1.0 - trust
        if left < 0.0031:
            break
    assert {token: part for token, part in parts.items() if part > 2e-3} == pytest.approx(
        {token: part for token, part in wanted.items() if part > 2e-3}, rel=1e-3, abs=4e-3
    )
    assert sum(found.values()) <= 1.0 + 1e-5
    assert all(parts[token] <= found[token] + 1e-6 for token in found)


def test_trust_moves_to_a_corpus_that_is_right_and_from_one_that_is_wrong():
    text = np.array([1, 2, 3] * 30, np.int32)
    config = SuccessorConfig(text_orders=(), target_orders=(), corpus_orders=(2,))
    right, wrong = (
        model_with([[1, 2, 3, 1, 2]], config=config),
        model_with([[1, 2, 5], [2, 3, 5], [3, 1, 5]], config=config),
    )
    before = float(right.trusts.corpus[2, 0, 1])
    for model in (right, wrong):
        adapt_trust(model, text, 0, 0.1)
    assert float(wrong.trusts.corpus[2, 0, 1]) < 0.05 < before < 0.9 < float(right.trusts.corpus[2, 0, 1])
    assert (right.trusts.corpus[3:] == wrong.trusts.corpus[3:]).all()


class Switching:
    """A library whose indexes are replaced, by namespace."""

    def __init__(self):
        self.indexes = {}

    def of(self, namespace):
        return self.indexes.get(namespace, ())


def asked(namespace):
    params = SamplingParams(max_tokens=50)
    return RequestView.of(1, Request(PROMPT, params, namespace=namespace), 48)


def drafted(speculator, request):
    return {token for branch in speculator.propose(request, 8) for token in branch.tokens}


def test_a_request_sees_its_namespaces_texts_as_they_are_now_and_keeps_nothing_of_them():
    library = Switching()
    speculator = Successors(SMALL, (TEXT, CORPUS), library=library)
    mine, other = asked("mine"), asked("other")
    library.indexes["mine"] = (MemoryIndex([[PROMPT[-1], 41, 42]]),)
    speculator.begin(mine)
    assert {41, 42} <= drafted(speculator, mine)
    assert speculator.propose(mine, 8)[0].proposers[0] in {(CORPUS,), (TEXT, CORPUS), (TEXT,)}
    library.indexes = {"mine": (MemoryIndex([[PROMPT[-1], 43]]),)}
    assert 43 in drafted(speculator, mine)
    assert 41 not in drafted(speculator, mine)
    speculator.end(mine)
    speculator.begin(other)
    assert not drafted(speculator, other) & {41, 42, 43}


def test_ids_that_the_target_lacks_are_not_drafted():
    speculator = Successors(
        SMALL, (TEXT, CORPUS), library=FixedLibrary(MemoryIndex([[PROMPT[-1], 48], [PROMPT[-1], 47]]))
    )
    request = asked("")
    speculator.begin(request)
    assert 47 in drafted(speculator, request)
    assert 48 not in drafted(speculator, request)


@pytest.mark.parametrize("sources", [ALL, (CORPUS, TARGET), (TEXT, CORPUS)])
def test_texts_stay_the_plain_ones_and_every_part_is_named(sources):
    target = HashTarget(48, n_successors=2)
    plain = target.generate(PROMPT, 400)
    speculator = Successors(SMALL, sources, library=FixedLibrary(MemoryIndex([plain])))
    run = decode(speculator, target, view(PROMPT), 12)
    assert run.output == plain[: len(run.output)]
    assert len(run.output) > 40
    named = {name for (branch,) in filter(None, run.drafts) for names in branch.proposers for name in names}
    assert named == set(sources)


def test_an_empty_context_is_looked_up_nowhere():
    speculator = Successors(SMALL, ALL, library=FixedLibrary(MemoryIndex([[7, 8]])))
    request = view([])
    speculator.begin(request)
    assert speculator.propose(request, 8) == []
    request.context.extend([7])
    speculator.observe(request, Outcome([7], EMPTY_TREE))
    assert 8 in drafted(speculator, request)


def test_the_registry_makes_one_model_of_the_names_that_are_mixed():
    options = SpeculatorOptions(retrieval=lambda: FixedLibrary())
    assert create("suffix+token-recycling+spectra-retrieval", options).sources == ALL
    assert create("spectra-retrieval+suffix", options).sources == (CORPUS, TEXT)
    assert isinstance(create("spectra-retrieval", options), SpectraRetrieval)
    apart = SpeculatorOptions(retrieval=lambda: FixedLibrary(), spectra_retrieval=SpectraRetrievalConfig(mode="apart"))
    names = [part.name for part in create("suffix+token-recycling+spectra-retrieval", apart)._parts]
    assert names == ["suffix+token-recycling", "spectra-retrieval"]
