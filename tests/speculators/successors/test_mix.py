"""The mixture of tables against a slow re-implementation on dictionaries."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculators.successors.config import SuccessorConfig
from speculators.successors.mix import mix_successors
from speculators.successors.models import Models
from speculators.successors.table import TAIL, fill_tail, learn_text, put_successors
from speculators.successors.vocabulary import VocabularyRows
from tests.support.successor_runs import BOTH

VOCAB = 40
CONFIG = SuccessorConfig(text_width=6, top_k=5, recent=8)
TEXTS = st.lists(st.integers(0, 5), min_size=1, max_size=50)
ROW = st.lists(
    st.tuples(st.integers(0, VOCAB - 1), st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.2])),
    unique_by=lambda x: x[0],
    max_size=5,
)
PUTS = st.lists(st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=9), ROW), max_size=8)


def tail_of(tokens):
    tail = np.empty(TAIL, np.int32)
    fill_tail(tail, np.array(tokens, np.int32), len(tokens))
    return tail


def vocabulary(seed, k=3):
    """Rows of the target behind every token and some pairs; of every third seed none were read."""
    if seed % 3 == 0:
        return VocabularyRows.none()
    rng = np.random.default_rng(seed)

    def rows(n):
        ids = np.array([rng.choice(VOCAB, k, replace=False) for _ in range(n)], np.int32)
        return ids, np.sort(rng.uniform(0.0, 0.3, ids.shape).astype(np.float32))[:, ::-1].copy()

    pairs = rng.permutation([(a << 32) | b for a in range(6) for b in range(6)])[:18]  # of the texts' tokens
    return VocabularyRows.of(*rows(VOCAB), (pairs, *rows(len(pairs))))


def pairs_of(model):
    """Pair of tokens -> successors and their weights."""
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
    learn_text(model.text, np.array(text, np.int32), 0)
    counts = defaultdict(Counter)
    for end in range(1, len(text)):
        for order in CONFIG.text_orders:
            if order <= end:
                counts[tuple(text[end - order : end])][text[end]] += 1
    target = {}
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
    """(token -> probability, token -> the part that counts gave), by the rule of the module."""
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
        if gram in target and order in CONFIG.target_orders:
            trust = float(model.trusts.target[order])
            for token, weight in target[gram]:
                p[token] += left * trust * weight
            left *= 1.0 - trust
        elif order == 2 and gram in (pairs := pairs_of(model)):
            trust = float(model.trusts.target[order])
            for token, weight in pairs[gram]:
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


@given(TEXTS, PUTS, ROW, st.integers(0, 9), st.lists(st.integers(0, 5), max_size=9))
def test_mixtures_break_the_stick_from_the_longest_order_down(text, puts, recent, trusts_seed, context):
    model, counts, target = build(text, puts, recent, trusts_seed)
    for place in (text, context, (text + context)[-9:]):
        wanted, from_text, left = literal_mix(model, counts, target, recent, place)
        n, ids, p, text_part = mixed(model, place)
        assert len(set(ids)) == n
        if abs(left - 0.003) > 1e-5:
            assert set(ids) == set(wanted)
            assert p == pytest.approx([wanted[i] for i in ids], rel=1e-4, abs=1e-6)
            assert text_part == pytest.approx([from_text[i] for i in ids], rel=1e-4, abs=1e-6)
        assert p.sum() <= 1.0 + 1e-5
        assert (text_part <= p + 1e-6).all()


@given(TEXTS, PUTS, st.integers(0, 9), st.floats(0.0, 0.1))
def test_what_contributes_little_may_be_left_out(text, puts, trusts_seed, least):
    """No more is lost than what was too little, and the text's own successors never are."""
    recent = [(30, 0.2), (31, 0.1), (32, 0.05)]  # heaviest first
    model, _, _ = build(text, puts, recent, trusts_seed)
    _, ids, p, _ = mixed(model, text)
    n = mix_successors(model, tail_of(text), least)
    kept = dict(zip(model.candidates.ids[:n].tolist(), model.candidates.p[:n].tolist(), strict=True))
    assert (model.candidates.from_text[:n] <= model.candidates.p[:n] + 1e-6).all()
    for token, before in zip(ids, p.tolist(), strict=True):
        n_contributions = len(CONFIG.target_orders) + 2
        assert before - n_contributions * least - 1e-6 <= kept.get(token, 0.0) <= before + 1e-6


def test_the_number_of_candidates_is_bounded():
    model = Models(SuccessorConfig(top_k=300), BOTH).new(1000)
    for order, context in enumerate(([4], [3, 4], [2, 3, 4], [1, 2, 3, 4, 5, 4])):
        ids = np.arange(order * 300, order * 300 + 300, dtype=np.int32)
        put_successors(model.target, tail_of(context), ids, np.full(300, 1 / 300, np.float32))
    put_successors(
        model.target, tail_of([9, 8, 7, 6, 4]), np.arange(3000, 3300, dtype=np.int32), np.ones(300, np.float32)
    )
    n, ids, p, _ = mixed(model, [9, 8, 7, 6, 4])
    assert n <= len(model.candidates.ids) == len(model.candidates.p)
    assert len(set(ids)) == n
    assert (p > 0).all()
