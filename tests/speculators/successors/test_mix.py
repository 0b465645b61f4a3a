"""The mixture of tables, and what knowing the noise makes of it, against slow re-implementations on dictionaries."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling.keys import GUMBEL_DOMAIN, mix64, position_key, request_key
from engine.sampling.noise import _bits_numpy, _counters, gumbel_row
from speculators.successors.mix import UNSEEN, Sampling, exponential, mix_successors, weigh_draws
from speculators.successors.mix import mix64 as compiled_mix64
from speculators.successors.speculator import SuccessorConfig, Successors
from speculators.successors.table import TAIL, fill_tail, learn_text, put_successors
from speculators.successors.vocabulary import VocabularyRows

VOCAB = 40
CONFIG = SuccessorConfig(text_width=6, top_k=5, recent=8)
FAST = settings(max_examples=60, deadline=None)
U64 = st.integers(0, (1 << 64) - 1)
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
    model = Successors(CONFIG, vocabulary=vocabulary(trusts_seed))._new_model(1000)
    rng = np.random.default_rng(trusts_seed)
    model.text_trust[:] = rng.uniform(0.02, 0.98, model.text_trust.shape)
    model.target_trust[:] = rng.uniform(0.02, 0.98, model.target_trust.shape)
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
            trust = float(model.text_trust[order, min(total, 3) - 1, int(len(counts[gram]) == 1)])
            for token, count in counts[gram].items():
                p[token] += left * trust * count / total
                from_text[token] += left * trust * count / total
            left *= 1.0 - trust
        if gram in target and order in CONFIG.target_orders:
            trust = float(model.target_trust[order])
            for token, weight in target[gram]:
                p[token] += left * trust * weight
            left *= 1.0 - trust
        elif order == 2 and gram in (pairs := pairs_of(model)):
            trust = float(model.target_trust[order])
            for token, weight in pairs[gram]:
                p[token] += left * trust * weight
            left *= 1.0 - trust
        if left < 0.003:
            return p, from_text, left
    if context and len(model.vocabulary.ids):
        trust, last = float(model.target_trust[0]), context[-1]
        for token, weight in zip(model.vocabulary.ids[last], model.vocabulary.weights[last], strict=True):
            p[int(token)] += left * trust * float(weight)
        left *= 1.0 - trust
    for token, weight in recent:
        p[token] += left * float(model.recent_trust[0]) * weight
    return p, from_text, left


def mixed(model, context):
    n = mix_successors(model, tail_of(context))
    return n, model.ids[:n].tolist(), model.p[:n].copy(), model.from_text[:n].copy()


@settings(max_examples=60, deadline=None)
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


@FAST
@given(TEXTS, PUTS, st.integers(0, 9), st.floats(0.0, 0.1))
def test_what_contributes_little_may_be_left_out(text, puts, trusts_seed, least):
    """No more is lost than what was too little, and the text's own successors never are."""
    recent = [(30, 0.2), (31, 0.1), (32, 0.05)]  # heaviest first
    model, _, _ = build(text, puts, recent, trusts_seed)
    _, ids, p, _ = mixed(model, text)
    n = mix_successors(model, tail_of(text), least)
    kept = dict(zip(model.ids[:n].tolist(), model.p[:n].tolist(), strict=True))
    assert (model.from_text[:n] <= model.p[:n] + 1e-6).all()
    for token, before in zip(ids, p.tolist(), strict=True):
        n_contributions = len(CONFIG.target_orders) + 2
        assert before - n_contributions * least - 1e-6 <= kept.get(token, 0.0) <= before + 1e-6


def test_the_number_of_candidates_is_bounded():
    model = Successors(SuccessorConfig(top_k=300))._new_model(1000)
    for order, context in enumerate(([4], [3, 4], [2, 3, 4], [1, 2, 3, 4, 5, 4])):
        ids = np.arange(order * 300, order * 300 + 300, dtype=np.int32)
        put_successors(model.target, tail_of(context), ids, np.full(300, 1 / 300, np.float32))
    put_successors(
        model.target, tail_of([9, 8, 7, 6, 4]), np.arange(3000, 3300, dtype=np.int32), np.ones(300, np.float32)
    )
    n, ids, p, _ = mixed(model, [9, 8, 7, 6, 4])
    assert n <= len(model.ids) == len(model.p)
    assert len(set(ids)) == n
    assert (p > 0).all()


# The noise is the engine's own.


@FAST
@given(U64)
def test_the_compiled_mixer_is_the_engines(x):
    assert int(compiled_mix64(np.uint64(x))) == mix64(x)


@FAST
@given(U64, st.integers(0, 3), st.integers(0, 1 << 20), st.lists(st.integers(0, 262143), min_size=1, max_size=30))
def test_the_noise_of_a_candidate_is_the_noise_the_target_draws_by(seed, choice, position, ids):
    key = compiled_mix64(np.uint64(request_key(seed, choice)) ^ np.uint64(position))
    assert int(key) == position_key((seed, choice, position), GUMBEL_DOMAIN)
    ids = np.array(ids)
    found = np.array([exponential(np.uint64(key), int(i)) for i in ids])
    bits = _bits_numpy(int(key), _counters(262144)[ids])
    assert np.round(np.exp(-found) * 2.0**32 - 0.5).astype(np.uint32).tolist() == bits.tolist()
    assert -np.log(found) == pytest.approx(gumbel_row((seed, choice, position), 262144, ids), rel=1e-6, abs=1e-6)


def candidates(model, p, from_text):
    n = len(p)
    model.ids[:n] = np.arange(n) * 3
    model.p[:n] = p
    model.from_text[:n] = from_text


def distribution(draw_weights):
    return (np.array(draw_weights) / (sum(draw_weights) or 1.0)).astype(np.float32)


WEIGHTS = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12)


@FAST
@given(WEIGHTS, st.floats(0.2, 1.0), st.floats(0.01, 2.0), U64, st.integers(0, 9999), st.floats(0.0, 1.0))
def test_weights_stay_probabilities_and_text_stays_a_part_of_them(weights, mass, temperature, key, position, share):
    model = Successors(CONFIG)._new_model(10)
    p = distribution(weights) * np.float32(mass)
    for noise_key in (0, key):
        candidates(model, p, p * np.float32(share))
        weigh_draws(model, len(p), Sampling(temperature, np.uint64(noise_key)), position)
        found, part = model.p[: len(p)], model.from_text[: len(p)]
        assert np.isfinite(found).all()
        assert (found >= 0).all()
        assert found.sum() <= 1.0 + 1e-5
        assert part == pytest.approx(found * share, rel=1e-3, abs=1e-6)


@FAST
@given(WEIGHTS, st.floats(0.2, 1.0), U64, st.integers(0, 9999))
def test_greedy_candidates_share_most_of_what_is_left_and_know_no_noise(weights, mass, key, position):
    model = Successors(CONFIG)._new_model(10)
    p = distribution(weights) * np.float32(mass)
    candidates(model, p, p)
    weigh_draws(model, len(p), Sampling(0.0, np.uint64(key)), position)
    total = float(p.sum())
    shared = model.p[: len(p)].copy()
    assert shared == pytest.approx(p / (total + UNSEEN * max(1.0 - total, 1e-3)), rel=1e-3)
    weigh_draws(model, 0, Sampling(1.0, np.uint64(key)), position)
    assert (model.p[: len(p)] == shared).all()


@settings(max_examples=80, deadline=None)
@given(WEIGHTS, st.floats(0.1, 2.0), st.integers(1, 1 << 63), st.integers(0, 2), st.integers(0, 9999))
def test_where_the_whole_distribution_is_known_the_best_candidate_is_what_the_target_draws(
    weights, temperature, seed, choice, position
):
    model = Successors(CONFIG)._new_model(10)
    p = distribution(weights)
    candidates(model, p, p)
    weigh_draws(model, len(p), Sampling(temperature, np.uint64(request_key(seed, choice))), position)
    scores = np.log(p.astype(np.float64)) / temperature
    scores += gumbel_row((seed, choice, position), VOCAB, np.arange(len(p)) * 3)
    best, *others = np.sort(scores)[::-1]
    if not others or best - others[0] > 1e-3:
        assert model.p[: len(p)].argmax() == scores.argmax()


@FAST
@given(WEIGHTS, st.floats(0.3, 1.0), st.floats(0.02, 0.5))
def test_a_low_temperature_makes_the_best_candidate_surer(weights, mass, temperature):
    """Towards temperature 0 the target follows its argmax, and that is the best candidate if the model is right."""
    model = Successors(CONFIG)._new_model(10)
    p = distribution([*weights, 2.0 * max(weights)]) * np.float32(mass)
    candidates(model, p, p)
    weigh_draws(model, len(p), Sampling(temperature, np.uint64(0)), 0)
    assert model.p[len(p) - 1] >= p[-1] - 1e-6
