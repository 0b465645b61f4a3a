"""Tables of successors, and their mixture, against slow re-implementations on dictionaries."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculators.successors.config import SuccessorConfig
from speculators.successors.mix import mix_successors
from speculators.successors.models import Models
from speculators.successors.table import (
    NARROW,
    NONE,
    TAIL,
    WAYS,
    claim,
    find,
    hash_tail,
    learn_text,
    make_table,
    put_successors,
)
from speculators.successors.vocabulary import VocabularyRows
from tests.speculators.successors.successor_runs import BOTH, array, row_of, tail_of

U64 = (1 << 64) - 1
ORDERS = (1, 2, 3, 5, 8)
TEXTS = st.integers(2, 5).flatmap(lambda n: st.lists(st.integers(0, n - 1), max_size=60))


def key_of(gram):
    return np.uint64(hash_tail(tail_of(gram), len(gram)))


def literal_counts(text, orders=ORDERS):
    """(gram -> how often each token followed it), grams of all orders."""
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
    """Rows of the target after every token and some pairs; every third seed has none."""
    if seed % 3 == 0:
        return VocabularyRows.none()
    rng = np.random.default_rng(seed)

    def rows(n):
        ids = np.array([rng.choice(VOCAB, k, replace=False) for _ in range(n)], np.int32)
        return ids, np.sort(rng.uniform(0.0, 0.3, ids.shape).astype(np.float32))[:, ::-1].copy()

    pairs = rng.permutation([(a << 32) | b for a in range(6) for b in range(6)])[:18]  # of the texts' tokens
    return VocabularyRows.of(*rows(VOCAB), (pairs, *rows(len(pairs))))


def pairs_of(model):
    rows = model.vocabulary
    return {
        (key >> 32, key & 0xFFFFFFFF): list(zip(ids.tolist(), weights.tolist(), strict=True))
        for key, ids, weights in zip(rows.pair_keys.tolist(), rows.pair_ids, rows.pair_weights, strict=True)
    }


def build(text, puts, recent, trusts_seed):
    """A model, and the same as dictionaries: (counts, target, recent)."""
    model = Models(CONFIG, BOTH, vocabulary(trusts_seed)).new(1000)
    rng = np.random.default_rng(trusts_seed)
    model.trusts.text[:] = rng.uniform(0.02, 0.98, model.trusts.text.shape)
    model.trusts.target[:] = rng.uniform(0.02, 0.98, model.trusts.target.shape)
    model.recent_trust[0] = rng.uniform(0.0, 1.0)
    learn_text(model.text, array(text), 0)
    counts, target = literal_counts(text, CONFIG.text_orders), {}
    for context, row in puts:
        ids, weights = np.array([i for i, _ in row], np.int32), np.array([w for _, w in row], np.float32)
        put_successors(model.target, tail_of(context), ids, weights)
        for order in CONFIG.target_orders:
            if order <= len(context):
                target[tuple(context[-order:])] = row
    model.recent_ids[: len(recent)] = [token for token, _ in recent]
    model.recent_weights[: len(recent)] = [weight for _, weight in recent]
    return model, counts, target


def literal_mix(model, counts, target, recent, context):
    """(token -> probability, token -> its part from counts), by the rule of the module."""
    p, from_text = defaultdict(float), defaultdict(float)
    left = 1.0
    for order in range(TAIL, 0, -1):
        gram = tuple(context[-order:])
        if order > len(context):
            continue
        if gram in counts and order in CONFIG.text_orders:
            total = counts[gram].total()
            trust = float(model.trusts.text[order, min(total, 3) - 1, int(len(counts[gram]) == 1)])
            for token, count in counts[gram].items():
                p[token] += left * trust * count / total
                from_text[token] += left * trust * count / total
            left *= 1.0 - trust
        known = target.get(gram) if order in CONFIG.target_orders else None
        if known is None and order == 2:
            known = pairs_of(model).get(gram)
        if known is not None:
            trust = float(model.trusts.target[order])
            for token, weight in known:
                p[token] += left * trust * weight
            left *= 1.0 - trust
        if left < 0.003:
            return p, from_text, left
    if context and len(model.vocabulary.ids):
        trust, last = float(model.trusts.target[0]), context[-1]
        for token, weight in zip(model.vocabulary.ids[last], model.vocabulary.weights[last], strict=True):
            p[int(token)] += left * trust * float(weight)
        left *= 1.0 - trust
    for token, weight in recent:
        p[token] += left * float(model.recent_trust[0]) * weight
    return p, from_text, left


def mixed(model, context):
    n = mix_successors(model, tail_of(context))
    return n, model.candidates.ids[:n].tolist(), model.candidates.p[:n].copy(), model.candidates.from_text[:n].copy()


@given(TEXTS.filter(bool), PUTS, SUCCESSORS, st.integers(0, 9), st.lists(st.integers(0, 5), max_size=9))
def test_mixtures_break_the_stick_from_the_longest_order_down(text, puts, recent, trusts_seed, context):
    model, counts, target = build(text, puts, recent, trusts_seed)
    for place in (text, context, (text + context)[-9:]):
        expected, from_text, left = literal_mix(model, counts, target, recent, place)
        n, ids, p, text_part = mixed(model, place)
        assert len(set(ids)) == n
        if abs(left - 0.003) > 1e-5:
            assert set(ids) == set(expected)
            assert p == pytest.approx([expected[i] for i in ids], rel=1e-4, abs=1e-6)
            assert text_part == pytest.approx([from_text[i] for i in ids], rel=1e-4, abs=1e-6)
        assert p.sum() <= 1.0 + 1e-5
        assert (text_part <= p + 1e-6).all()


def test_the_number_of_candidates_is_bounded():
    model = Models(SuccessorConfig(top_k=300), BOTH).new(1000)
    for number, context in enumerate(([4], [6, 4], [7, 6, 4], [8, 7, 6, 4], [9, 8, 7, 6, 4])):
        ids = np.arange(number * 300, number * 300 + 300, dtype=np.int32)
        put_successors(model.target, tail_of(context), ids, np.full(300, 1 / 300, np.float32))
    n, ids, p, _ = mixed(model, [9, 8, 7, 6, 4])
    assert n <= len(model.candidates.ids) == len(model.candidates.p)
    assert len(set(ids)) == n
    assert (p > 0).all()
