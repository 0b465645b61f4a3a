"""Growing trees and learning from them, against slow re-implementations on lists and dictionaries."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tree import ROOT
from speculators.successors.config import SuccessorConfig
from speculators.successors.draws import Sampling, weigh_draws
from speculators.successors.growth import LIKELY, MAX_CHILDREN, WORTHLESS, expand, grow, make_growth
from speculators.successors.learning import RECENT_WIDTH, adapt_trust, learn_prompt, learn_tree, remember_recent
from speculators.successors.mix import mix_successors
from speculators.successors.models import Models
from speculators.successors.table import NONE, TAIL, fill_tail, find, hash_tail, learn_text, put_successors
from speculators.successors.vocabulary import VocabularyRows
from tests.support.successor_runs import BOTH

VOCAB = 64
CONFIG = SuccessorConfig(text_width=4, top_k=4, recent=6)
TEXTS = st.lists(st.integers(0, 5), min_size=1, max_size=60)
SAMPLINGS = st.tuples(st.sampled_from([0.0, 0.5, 0.8, 1.0]), st.sampled_from([0, 0, 12345, 2**64 - 3]))


def array(tokens):
    return np.array(tokens, np.int32)


def tail_of(tokens):
    tail = np.empty(TAIL, np.int32)
    fill_tail(tail, array(tokens), len(tokens))
    return tail


def new_model(text, seed, config=CONFIG):
    """A model that knows a text's counts and made-up probabilities of the target behind some of its contexts."""
    rng = np.random.default_rng(seed)
    rows = np.array([rng.choice(8, 4, replace=False) for _ in range(VOCAB * (seed % 2))], np.int32).reshape(-1, 4)
    weights = np.array([0.4, 0.2, 0.1, 0.05], np.float32)
    pairs = rng.permutation([(a << 32) | b for a in range(8) for b in range(8)])[: 30 * (seed % 2)]
    pair_rows = np.array([rng.choice(8, 4, replace=False) for _ in pairs], np.int32).reshape(-1, 4)
    behind_pairs = pairs, pair_rows, np.tile(weights, (len(pairs), 1))
    read = VocabularyRows.of(rows, np.tile(weights, (len(rows), 1)), behind_pairs)
    model = Models(config, BOTH, read).new(1000)
    learn_text(model.text, array(text), 0)
    for end in rng.integers(1, len(text) + 1, 10):
        ids = rng.choice(8, 4, replace=False).astype(np.int32)
        put_successors(model.target, tail_of(text[:end]), ids, rng.dirichlet([0.5] * 5)[:4].astype(np.float32))
    model.recent_trust[0] = 0.5
    model.recent_ids[:] = rng.choice(VOCAB, len(model.recent_ids), replace=False)
    model.recent_weights[:] = 0.1
    return model


def successors(model, context, sampling, reach):
    """Every candidate behind a context: token -> probability, of the MAX_CHILDREN most probable.

    Greedy, what cannot matter below a path of probability ``reach`` is not looked at.
    """
    least = 0.0 if sampling.temperature else WORTHLESS / float(np.float32(reach))
    n = mix_successors(model, tail_of(context), least)
    weigh_draws(model.candidates, n, sampling, len(context))
    best = sorted(zip(model.candidates.p[:n].tolist(), model.candidates.ids[:n].tolist(), strict=True), reverse=True)[
        :MAX_CHILDREN
    ]
    return {token: p for p, token in best}


@given(TEXTS, st.integers(0, 99), st.integers(0, 40), st.sampled_from([1e-5, 1e-3, 0.05]), SAMPLINGS)
def test_grown_trees_hold_the_probable_paths_and_nothing_else(text, seed, budget, least, how):
    model = new_model(text, seed)
    sampling = Sampling(how[0], np.uint64(how[1]))
    growth = make_growth(40)
    n = grow(model, growth, array(text), budget, least, sampling)
    assert n <= budget
    tokens, parents = growth.tokens[:n].tolist(), growth.parents[:n].tolist()
    assert len(set(zip(parents, tokens, strict=True))) == n
    paths, reach = {ROOT: []}, {ROOT: 1.0}
    known = {ROOT: successors(model, text, sampling, 1.0)}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        assert ROOT <= parent < node
        paths[node] = [*paths[parent], token]
        score = float(growth.scores[node])
        assert 0.0 < score <= 1.0 + 1e-6
        assert score == pytest.approx(known[parent][token], rel=1e-5)
        assert 0.0 <= growth.text_share[node] <= 1.0 + 1e-5
        reach[node] = reach[parent] * score
        assert reach[node] == pytest.approx(growth.reach[node + 1], rel=1e-4)
        assert reach[node] >= least * (1 - 1e-4)
        known[node] = successors(model, text + paths[node], sampling, growth.reach[node + 1])
    for parent, children in known.items():  # siblings: the best, best first
        taken = [float(growth.scores[node]) for node in range(n) if parents[node] == parent]
        assert taken == sorted(taken, reverse=True)
        assert taken == pytest.approx(sorted(children.values(), reverse=True)[: len(taken)], rel=1e-5)
        if n < budget and reach[parent] * LIKELY > least * 1.001:  # nothing was left for lack of room
            left = sorted(children.values(), reverse=True)[len(taken) :]
            assert not left or reach[parent] * left[0] <= least * 1.001


def literal_growth(model, text, budget, least, sampling):
    """Best first, a row's first child counting LIKELY until the row was looked at: (paths, their probabilities)."""
    rows = [((), 1.0, None)]  # path, reach, open children, best first
    taken = []
    while len(taken) < budget:
        value, best = max(
            (reach * (LIKELY if left is None else left[0][0] if left else 0.0), -i)
            for i, (_, reach, left) in enumerate(rows)
        )
        path, reach, left = rows[-best]
        if value <= least:
            break
        if left is None:
            left = sorted(((p, t) for t, p in successors(model, [*text, *path], sampling, reach).items()), reverse=True)
            rows[-best] = (path, reach, left)
            continue
        p, token = left.pop(0)
        taken.append(reach * p)
        rows.append(((*path, token), reach * p, None))
    return taken


@given(TEXTS, st.integers(0, 99), st.integers(1, 24), SAMPLINGS)
def test_the_most_probable_come_first(text, seed, budget, how):
    sampling = Sampling(how[0], np.uint64(how[1]))
    growth = make_growth(budget)
    n = grow(new_model(text, seed), growth, array(text), budget, 1e-5, sampling)
    wanted = literal_growth(new_model(text, seed), text, budget, 1e-5, sampling)
    assert n == len(wanted)
    assert growth.reach[1 : n + 1].sum() == pytest.approx(sum(wanted), rel=1e-3)


@given(st.lists(st.floats(1e-3, 1.0), max_size=60))
def test_a_row_keeps_its_best_successors_in_order(weights):
    model = Models(SuccessorConfig(top_k=60), BOTH).new(100)
    put_successors(model.target, tail_of([1]), np.arange(len(weights), dtype=np.int32), np.array(weights, np.float32))
    growth = make_growth(2)
    growth.tails[0] = tail_of([1])
    growth.reach[0] = 1.0
    expand(model, growth, 0, Sampling(0.0, np.uint64(0)), 1)
    n = int(growth.n_children[0])
    assert n == min(len(weights), MAX_CHILDREN)
    kept = np.array(weights, np.float32)[growth.child_ids[0, :n]]
    assert kept.tolist() == sorted(np.array(weights, np.float32).tolist(), reverse=True)[:n]
    shares = growth.child_p[0, :n]
    assert shares == pytest.approx(kept * (shares.sum() / max(kept.sum(), 1e-9)), rel=1e-4)
    assert shares.sum() <= 1.0 + 1e-5
    assert (shares > 0).all()


def row_of(table, context, order):
    key = np.uint64(hash_tail(tail_of(context), order))
    row = find(table, key) if key else NONE
    if row == NONE:
        return None
    n = int((np.append(table.ids[row], NONE) == NONE).argmax())
    return dict(zip(table.ids[row, :n].tolist(), table.weights[row, :n].tolist(), strict=True))


@given(TEXTS, st.data())
def test_a_tree_teaches_what_the_target_said_behind_each_of_its_nodes(text, data):
    n = data.draw(st.integers(0, 8))
    tokens = data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))
    parents = [data.draw(st.integers(ROOT, i - 1)) for i in range(n)]
    nodes = sorted(data.draw(st.sets(st.integers(ROOT, n - 1), min_size=1)))
    n_before = data.draw(st.integers(1, len(text)))
    rng = np.random.default_rng(n)
    ids = np.array([rng.choice(VOCAB, 4, replace=False) for _ in nodes], np.int32)
    weights = rng.uniform(0.0, 0.25, ids.shape).astype(np.float32)
    model = Models(CONFIG, BOTH).new(1000)
    learn_tree(model, array(text), n_before, array(tokens), array(parents), array(nodes), ids, weights, 0.9)
    wanted = {}
    for node, row, weight in zip(nodes, ids.tolist(), weights.tolist(), strict=True):
        path = []
        while node != ROOT:
            path, node = [tokens[node], *path], parents[node]
        context = text[:n_before] + path
        for order in CONFIG.target_orders:
            if order <= len(context):
                wanted[tuple(context[-order:])] = dict(zip(row, weight, strict=True))
    assert (model.target.keys != 0).sum() == len(wanted)
    for gram, successors_ in wanted.items():
        assert row_of(model.target, list(gram), len(gram)) == successors_


@given(TEXTS, st.integers(1, 60), st.integers(0, 9))
def test_a_prompt_teaches_the_same_in_chunks_of_any_size(text, chunk, seed):
    rng = np.random.default_rng(seed)
    ids = np.array([rng.choice(VOCAB, 4, replace=False) for _ in text], np.int32)
    weights = rng.uniform(0.0, 0.25, ids.shape).astype(np.float32)
    whole, parts = (Models(CONFIG, BOTH).new(1000) for _ in range(2))
    learn_prompt(whole, array(text), 0, ids, weights, 0.9)
    for start in range(0, len(text), chunk):
        end = start + chunk
        learn_prompt(parts, array(text[:end]), start, ids[start:end], weights[start:end], 0.9)
    for end in range(1, len(text) + 1):
        for order in CONFIG.target_orders:
            row = row_of(whole.target, text[:end], order)
            assert row == row_of(parts.target, text[:end], order)
            assert (row is None) == (order > end)
    assert row_of(whole.target, text, 1) == dict(zip(ids[-1].tolist(), weights[-1].tolist(), strict=True))


STEPS = st.lists(
    st.lists(st.lists(st.integers(0, 30), min_size=10, max_size=10, unique=True), min_size=1, max_size=5), max_size=5
)


@given(STEPS, st.sampled_from([0.5, 0.9, 0.98]))
def test_recent_tokens_are_the_heaviest_of_a_fading_sum(steps, decay):
    model = Models(SuccessorConfig(recent=40), BOTH).new(100)
    literal = {}
    for number, step in enumerate(steps):
        ids = np.array(step, np.int32)
        weights = np.random.default_rng(number).dirichlet(np.ones(10), len(ids)).astype(np.float32)
        remember_recent(model, ids, weights, decay)
        for row, weight in zip(step, weights.tolist(), strict=True):
            literal = {token: value * decay for token, value in literal.items()}
            for token, value in list(zip(row, weight, strict=True))[:RECENT_WIDTH]:
                literal[token] = literal.get(token, 0.0) + value * (1.0 - decay)
    n = len(literal)
    found = model.recent_weights[:n].tolist()
    assert found == sorted(found, reverse=True)
    assert set(model.recent_ids[:n].tolist()) == set(literal)
    assert (model.recent_ids[n:] == NONE).all()
    assert found == pytest.approx([literal[i] for i in model.recent_ids[:n].tolist()], rel=1e-4, abs=1e-7)
    assert sum(found) <= 1.0 + 1e-5


def test_a_short_list_keeps_the_heaviest_recent_tokens_of_many():
    """More different tokens in one step than there is scratch room for: what is newest must not be what is lost."""
    model = Models(SuccessorConfig(recent=16), BOTH).new(100)
    ids = np.arange(1000, dtype=np.int32).reshape(125, 8)
    remember_recent(model, ids, np.full(ids.shape, 0.125, np.float32), 0.98)
    assert set(model.recent_ids.tolist()) == set(range(1000 - 16, 1000))
    remember_recent(model, np.full((1, 1), 1500, np.int32), np.ones((1, 1), np.float32), 0.5)
    assert model.recent_ids[0] == 1500
    assert len(set(model.recent_ids.tolist())) == 16


# Trusts.


def pair_of(model, first, second):
    """What the target says behind a pair of tokens in any text; None if it was not read."""
    rows = model.vocabulary
    (places,) = np.nonzero(rows.pair_keys == (int(first) << 32 | int(second)))
    found = [zip(rows.pair_ids[i].tolist(), rows.pair_weights[i].tolist(), strict=True) for i in places]
    return dict(found[0]) if found else None


def literal_adaptation(model, text, first, rate):
    """Online EM over the same stick, on dictionaries of trusts."""
    trusts = {}
    for end in range(max(first, 1), len(text)):
        parts = []
        for order in range(TAIL, 0, -1):
            if order > end:
                continue
            for kind, table in (("text", model.text), ("target", model.target)):
                row = row_of(table, text[:end], order)
                if row is None and kind == "target" and order == 2:
                    row = pair_of(model, text[end - 2], text[end - 1])
                if row is None:
                    continue
                p, where = row.get(text[end], 0.0), (kind, order)
                if kind == "text":
                    total = sum(row.values())
                    p, where = p / total, ("text", order, min(int(total), 3) - 1, int(len(row) == 1))
                array_ = model.trusts.text if kind == "text" else model.trusts.target
                trusts.setdefault(where, float(array_[where[1:]]))
                parts.append((where, p))
        if len(model.vocabulary.ids):
            last = text[end - 1]
            row = dict(zip(model.vocabulary.ids[last].tolist(), model.vocabulary.weights[last].tolist(), strict=True))
            trusts.setdefault(("target", 0), float(model.trusts.target[0]))
            parts.append((("target", 0), row.get(text[end], 0.0)))
        below, given_ = 1e-3, []
        for where, p in reversed(parts):
            gave = trusts[where] * p
            below = gave + (1.0 - trusts[where]) * below
            given_.insert(0, gave / below)
        reached = 1.0
        for (where, _), q in zip(parts, given_, strict=True):
            moved = trusts[where] + rate * reached * (q - trusts[where])
            trusts[where] = min(max(moved, 0.02), 0.98)
            reached *= 1.0 - q
    return trusts


@given(TEXTS, TEXTS, st.integers(0, 99), st.sampled_from([0.03, 0.3, 1.0]))
def test_trusts_follow_online_em_and_stay_within_bounds(known, text, seed, rate):
    model = new_model(known, seed)
    wanted = literal_adaptation(model, text, 0, rate)
    before = model.trusts.text.copy(), model.trusts.target.copy()
    adapt_trust(model, array(text), 0, rate)
    for (kind, *where), trust in wanted.items():
        found = model.trusts.text if kind == "text" else model.trusts.target
        assert found[tuple(where)] == pytest.approx(trust, abs=1e-4)
        assert 0.0199 <= found[tuple(where)] <= 0.9801
        (before[0] if kind == "text" else before[1])[tuple(where)] = found[tuple(where)]
    assert (model.trusts.text == before[0]).all(), "a trust moved that nothing spoke for or against"
    assert (model.trusts.target == before[1]).all()


@pytest.mark.parametrize("right", ["text", "target"])
def test_trust_moves_to_the_half_that_is_right(right):
    config = SuccessorConfig(text_orders=(2,), target_orders=(2,), top_k=1)
    model = Models(config, BOTH).new(1000)
    text = [1, 2, 3] * 40
    said = {(1, 2): 3, (2, 3): 1, (3, 1): 2}
    for pair, token in said.items():
        wrong = 9
        learn_text(model.text, array([*pair, token if right == "text" else wrong]), 2)
        shown = array([token if right == "target" else wrong])
        put_successors(model.target, tail_of(pair), shown, np.full(1, 0.9, np.float32))
    text_before, target_before = float(model.trusts.text[2, 0, 1]), float(model.trusts.target[2])
    adapt_trust(model, array(text), 0, 0.1)
    text_after, target_after = float(model.trusts.text[2, 0, 1]), float(model.trusts.target[2])
    if right == "text":
        assert text_after > 0.9 > text_before
    else:
        assert target_after > 0.9 > target_before
        assert text_after < 0.05 < text_before
    assert math.isfinite(text_after + target_after)
