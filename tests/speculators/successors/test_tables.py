"""Tables of successors and their mixture, compared with slow code on dictionaries."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculators.successors.candidates import MAX_CANDIDATES
from speculators.successors.config import SuccessorConfig
from speculators.successors.mix import EXPLAINED, TARGET_COLUMN, mix_successors
from speculators.successors.models import SuccessorModels
from speculators.successors.table import (
    NARROW,
    NONE,
    TAIL,
    WAYS,
    claim,
    find,
    learn_text,
    make_table,
    put_successors,
)
from speculators.successors.vocabulary import VocabularyRows
from tests.speculators.successors.successor_runs import BOTH, array, row_of, tail_of

ORDERS = (1, 2, 3, 5, 8)
TEXTS = st.integers(2, 5).flatmap(lambda n: st.lists(st.integers(0, n - 1), max_size=60))


def literal_counts(text, orders=ORDERS):
    """Return how often each token followed every gram of the given orders."""
    counts = defaultdict(Counter)
    for end in range(1, len(text)):
        for order in orders:
            if order <= end:
                counts[tuple(text[end - order : end])][text[end]] += 1
    return counts


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 15)), max_size=120))
def test_a_full_bucket_replaces_the_row_written_longest_ago(actions):
    """Keys share one bucket of a larger table; reading changes nothing."""
    table = make_table(64, 2, (1,))
    keys = [np.uint64((number * 64 + 8) * 2 + 1) for number in range(16)]
    written = {}  # key number -> when
    for time, (writes, number) in enumerate(actions):
        if not writes:
            assert (find(table, keys[number]) != NONE) == (number in written)
            continue
        table.clock[0] += 1
        row = claim(table, keys[number])
        if number not in written:
            assert (table.ids[row] == NONE).all()
            if len(written) == WAYS:
                del written[min(written, key=written.get)]
        table.ids[row] = number
        written[number] = time
        assert {n for n in range(16) if find(table, keys[n]) != NONE} == set(written)
        assert all((table.ids[find(table, keys[n])] == n).all() for n in written)
    assert (table.keys != 0).sum() == table.used[0] == len(written)


@given(TEXTS, st.integers(0, 60))
def test_learnt_texts_are_their_counts_however_they_are_cut(text, cut):
    counts = literal_counts(text)
    for pieces in ([len(text)], [min(cut, len(text)), len(text)]):
        table = make_table(1 << 13, 5, ORDERS)
        learnt = 0
        for end in pieces:
            learn_text(table, array(text[:end]), learnt)
            learnt = end
        assert (table.keys != 0).sum() == table.used[0] == len(counts)
        for gram, followers in counts.items():
            assert row_of(table, gram) == followers
    late, before = make_table(1 << 13, 5, ORDERS), literal_counts(text[:cut])
    learn_text(late, array(text), cut)
    for gram, followers in counts.items():
        assert (row_of(late, gram) or {}) == followers - before.get(gram, Counter()), "only tokens after the cut count"


def test_longer_contexts_keep_fewer_successors():
    table = make_table(64, 12, (1, 2, 3))
    put_successors(
        table, tail_of([4, 5, 6]), np.arange(20, dtype=np.int32), np.linspace(0.2, 0.01, 20, dtype=np.float32)
    )
    assert list(row_of(table, [6])) == list(range(12))
    assert list(row_of(table, [5, 6])) == list(row_of(table, [4, 5, 6])) == list(range(NARROW))
    put_successors(table, tail_of([4, 5, 6]), np.array([9], np.int32), np.ones(1, np.float32))
    assert row_of(table, [6]) == row_of(table, [5, 6]) == row_of(table, [4, 5, 6]) == {9: 1.0}


VOCAB = 40
CONFIG = SuccessorConfig(text_width=6, top_k=5, recent=8)
SUCCESSORS = st.lists(
    st.tuples(st.integers(0, VOCAB - 1), st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.2])),
    unique_by=lambda x: x[0],
    max_size=5,
)
PUTS = st.lists(st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=9), SUCCESSORS), max_size=8)


def vocabulary(seed, k=3):
    """Return rows of the target after every token and some pairs; every third seed has none."""
    if seed % 3 == 0:
        return VocabularyRows.none()
    rng = np.random.default_rng(seed)

    def rows(n):
        ids = np.array([rng.choice(VOCAB, k, replace=False) for _ in range(n)], np.int32)
        return ids, np.sort(rng.uniform(0.0, 0.3, ids.shape).astype(np.float32))[:, ::-1].copy()

    pairs = rng.permutation([(a << 32) | b for a in range(6) for b in range(6)])[:18]  # of the texts' tokens
    return VocabularyRows.of(*rows(VOCAB), (pairs, *rows(len(pairs))))


def build(text, puts, recent, trusts_seed):
    """Return a model, and as dictionaries its counts, and the rows of its target."""
    model = SuccessorModels(CONFIG, BOTH, vocabulary(trusts_seed)).new(1000)
    rng = np.random.default_rng(trusts_seed)
    model.trusts[:] = rng.uniform(0.02, 0.98, model.trusts.shape)
    model.recent_trust[0] = rng.uniform(0.0, 1.0)
    learn_text(model.text, array(text), 0)
    target = {}
    for context, row in puts:
        ids, weights = np.array([i for i, _ in row], np.int32), np.array([w for _, w in row], np.float32)
        put_successors(model.target, tail_of(context), ids, weights)
        target.update({tuple(context[-order:]): row for order in CONFIG.target_orders if order <= len(context)})
    for key, *row in zip(*(part.tolist() for part in model.vocabulary[2:]), strict=True):
        target.setdefault((key >> 32, key & 0xFFFFFFFF), list(zip(*row, strict=True)))
    model.recent_ids[: len(recent)] = [token for token, _ in recent]
    model.recent_weights[: len(recent)] = [weight for _, weight in recent]
    return model, literal_counts(text, CONFIG.text_orders), target


def literal_mix(model, counts, target, recent, context):
    """Return token -> part from counts, token -> part from the target, and the probability left at the end."""
    parts, left = (defaultdict(float), defaultdict(float)), 1.0

    def add(source, row, trust):
        nonlocal left
        for token, p in row:
            parts[source][int(token)] += left * float(trust) * float(p)
        left *= 1.0 - float(trust)

    for order in range(min(TAIL, len(context)), 0, -1):
        if left < EXPLAINED:
            return *parts, left
        gram = tuple(context[-order:])
        if followers := counts.get(gram):
            total = followers.total()
            column = 2 * (min(total, 3) - 1) + (len(followers) == 1)
            add(0, [(token, count / total) for token, count in followers.items()], model.trusts[order, column])
        if gram in target:
            add(1, target[gram], model.trusts[order, TARGET_COLUMN])
    if left < EXPLAINED:
        return *parts, left
    if context and len(model.vocabulary.ids):
        row = zip(model.vocabulary.ids[context[-1]], model.vocabulary.weights[context[-1]], strict=True)
        add(1, row, model.trusts[0, TARGET_COLUMN])
    add(1, recent, model.recent_trust[0])
    return *parts, left


def mixed(model, context):
    """Return ids, probabilities and their parts by source."""
    mix_successors(model, tail_of(context))
    n = model.candidates.n[0]
    ids = model.candidates.ids[:n].tolist()
    assert len(set(ids)) == n
    return ids, model.candidates.p[:n].copy(), model.candidates.parts[:n].copy()


@given(TEXTS.filter(bool), PUTS, SUCCESSORS, st.integers(0, 9), st.lists(st.integers(0, 5), max_size=9))
def test_mixtures_give_every_row_its_share_from_the_longest_order_down(text, puts, recent, trusts_seed, context):
    model, counts, target = build(text, puts, recent, trusts_seed)
    for place in (text, context, (text + context)[-9:]):
        from_text, from_target, left = literal_mix(model, counts, target, recent, place)
        ids, p, parts = mixed(model, place)
        if abs(left - EXPLAINED) > 1e-5:
            assert set(ids) == set(from_text) | set(from_target)
            assert parts[:, 0] == pytest.approx([from_text[i] for i in ids], rel=1e-4, abs=1e-6)
            assert parts[:, 1] == pytest.approx([from_target[i] for i in ids], rel=1e-4, abs=1e-6)
        assert p == pytest.approx(parts.sum(1), rel=1e-4, abs=1e-6)
        assert p.sum() <= 1.0 + 1e-5


def test_the_number_of_candidates_is_bounded():
    model = SuccessorModels(SuccessorConfig(top_k=300), BOTH).new(1000)
    for number, context in enumerate(([4], [6, 4], [7, 6, 4], [8, 7, 6, 4], [9, 8, 7, 6, 4])):
        ids = np.arange(number * 300, number * 300 + 300, dtype=np.int32)
        put_successors(model.target, tail_of(context), ids, np.full(300, 1 / 300, np.float32))
    ids, p, _ = mixed(model, [9, 8, 7, 6, 4])
    assert MAX_CANDIDATES // 2 < len(ids) <= MAX_CANDIDATES
    assert (p > 0).all()
