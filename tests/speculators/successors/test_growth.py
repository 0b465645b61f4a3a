"""Trees that grow and teach, against slow re-implementations, and candidates weighed by the target's noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.compiled.keys import mix64 as compiled_mix64
from engine.sampling.keys import GUMBEL_DOMAIN, mix64, position_key, request_key
from engine.sampling.noise import _bits_numpy, _counters, gumbel_row
from engine.tree import ROOT
from speculators.successors.calls import LEAST_SHARE, PROPOSERS, SOURCES, addresses_of_growth, draft, learn
from speculators.successors.candidates import make_candidates
from speculators.successors.config import SuccessorConfig
from speculators.successors.draws import Sampling, exponential, weigh_draws
from speculators.successors.growth import LIKELY, MAX_CHILDREN, WORTHLESS, make_growth
from speculators.successors.mix import mix_successors
from speculators.successors.models import Models
from speculators.successors.table import learn_text, put_successors
from speculators.successors.vocabulary import VocabularyRows
from tests.speculators.successors.successor_runs import BOTH, array, row_of, tail_of

VOCAB = 64
CONFIG = SuccessorConfig(text_width=4, top_k=4, recent=6)
TEXTS = st.lists(st.integers(0, 5), min_size=1, max_size=60)
SAMPLINGS = st.tuples(st.sampled_from([0.0, 0.5, 0.8, 1.0]), st.sampled_from([0, 0, 12345, 2**64 - 3]))


def new_model(text, seed, n_learnt):
    """A model with counts of ``text[:n_learnt]`` and made-up probabilities of the target after some of its contexts."""
    rng = np.random.default_rng(seed)
    rows = np.array([rng.choice(8, 4, replace=False) for _ in range(VOCAB * (seed % 2))], np.int32).reshape(-1, 4)
    weights = np.array([0.4, 0.2, 0.1, 0.05], np.float32)
    pairs = rng.permutation([(a << 32) | b for a in range(8) for b in range(8)])[: 30 * (seed % 2)]
    pair_rows = np.array([rng.choice(8, 4, replace=False) for _ in pairs], np.int32).reshape(-1, 4)
    behind_pairs = pairs, pair_rows, np.tile(weights, (len(pairs), 1))
    read = VocabularyRows.of(rows, np.tile(weights, (len(rows), 1)), behind_pairs)
    model = Models(CONFIG, BOTH, read).new(1000)
    learn_text(model.text, array(text[:n_learnt]), 0)
    for end in rng.integers(1, len(text) + 1, 10):
        ids = rng.choice(8, 4, replace=False).astype(np.int32)
        put_successors(model.target, tail_of(text[:end]), ids, rng.dirichlet([0.5] * 5)[:4].astype(np.float32))
    model.recent_trust[0] = 0.5
    model.recent_ids[:] = rng.choice(VOCAB, len(model.recent_ids), replace=False)
    model.recent_weights[:] = 0.1
    return model


def successors(model, context, sampling, reach):
    """The MAX_CHILDREN most probable candidates after a context: token -> probability.

    Greedy drafts skip what cannot matter after a path of probability ``reach``.
    """
    least = 0.0 if sampling.temperature else WORTHLESS / float(np.float32(reach))
    n = mix_successors(model, tail_of(context), least)
    weigh_draws(model.candidates, n, sampling, len(context))
    best = sorted(zip(model.candidates.p[:n].tolist(), model.candidates.ids[:n].tolist(), strict=True), reverse=True)[
        :MAX_CHILDREN
    ]
    return {token: p for p, token in best}


@given(TEXTS, st.integers(0, 99), st.integers(0, 40), st.sampled_from([1e-5, 1e-3, 0.05]), SAMPLINGS)
def test_grown_trees_hold_exactly_the_probable_paths(text, seed, budget, least, how):
    model = new_model(text, seed, n_learnt := len(text) // 2)
    sampling = Sampling(how[0], np.uint64(how[1]))
    growth = make_growth(40)
    addresses = Models.addressed(model).addresses, addresses_of_growth(growth)
    n = draft(*addresses, array(text), n_learnt, budget, least, *sampling)  # counts the rest of the text first
    assert n <= budget
    tokens, parents = growth.tokens[:n].tolist(), growth.parents[:n].tolist()
    assert len(set(zip(parents, tokens, strict=True))) == n
    paths: dict[int, list[int]] = {ROOT: []}
    reach = {ROOT: 1.0}
    known = {ROOT: successors(model, text, sampling, 1.0)}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        assert ROOT <= parent < node
        paths[node] = [*paths[parent], token]
        score = float(growth.scores[node])
        assert 0.0 < score <= 1.0 + 1e-6
        assert score == pytest.approx(known[parent][token], rel=1e-5)
        assert 0.0 <= growth.text_share[node] <= 1.0 + 1e-5
        assert PROPOSERS[growth.proposers[node]] == ranked(growth.text_share[node], growth.corpus_share[node])
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


def ranked(text, corpus):
    """The sources of a node by their shares, the first of equals first."""
    shares = (float(text), float(np.float32(1.0) - text - corpus), float(corpus))
    places = [place for place in range(3) if shares[place] > LEAST_SHARE]
    return tuple(SOURCES[place] for place in sorted(places, key=lambda place: -shares[place]))


@given(TEXTS, st.data())
def test_a_tree_teaches_the_targets_row_after_each_of_its_nodes(text, data):
    n = data.draw(st.integers(0, 8))
    tokens = data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))
    parents = [data.draw(st.integers(ROOT, i - 1)) for i in range(n)]
    nodes = sorted(data.draw(st.sets(st.integers(ROOT, n - 1), min_size=1)))
    n_before = data.draw(st.integers(1, len(text)))
    rng = np.random.default_rng(n)
    ids = np.array([rng.choice(VOCAB, 4, replace=False) for _ in nodes], np.int32)
    weights = rng.uniform(0.0, 0.25, ids.shape).astype(np.float32)
    model = Models(CONFIG, BOTH).new(1000)
    tree = array(tokens), array(parents), array(nodes), ids, weights
    learn(Models.addressed(model).addresses, array(text), 0, 0.0, n_before, *tree, 0.9, 0)
    assert (model.text.keys != 0).any() == (len(text) > 1), "the text is counted in the same call"
    expected = {}
    for node, row, weight in zip(nodes, ids.tolist(), weights.tolist(), strict=True):
        path = []
        while node != ROOT:
            path, node = [tokens[node], *path], parents[node]
        context = text[:n_before] + path
        for order in CONFIG.target_orders:
            if order <= len(context):
                expected[tuple(context[-order:])] = dict(zip(row, weight, strict=True))
    assert (model.target.keys != 0).sum() == len(expected)
    for gram, successors_ in expected.items():
        assert row_of(model.target, list(gram)) == successors_


U64 = st.integers(0, (1 << 64) - 1)


@given(U64, st.integers(0, 3), st.integers(0, 1 << 20), st.lists(st.integers(0, 262143), min_size=1, max_size=30))
def test_the_noise_of_a_candidate_is_the_noise_the_target_draws_by(seed, choice, position, ids):
    key = compiled_mix64(np.uint64(request_key(seed, choice)) ^ np.uint64(position))
    assert int(compiled_mix64(np.uint64(seed))) == mix64(seed)
    assert int(key) == position_key((seed, choice, position), GUMBEL_DOMAIN)
    ids = np.array(ids)
    found = np.array([exponential(np.uint64(key), int(i)) for i in ids])
    bits = _bits_numpy(int(key), _counters(262144)[ids])
    assert np.round(np.exp(-found) * 2.0**32 - 0.5).astype(np.uint32).tolist() == bits.tolist()
    assert -np.log(found) == pytest.approx(gumbel_row((seed, choice, position), 262144, ids), rel=1e-6, abs=1e-6)


def write(candidates, p, from_text):
    n = len(p)
    candidates.ids[:n] = np.arange(n) * 3
    candidates.p[:n] = p
    candidates.from_text[:n] = from_text


def distribution(draw_weights):
    return (np.array(draw_weights) / (sum(draw_weights) or 1.0)).astype(np.float32)


WEIGHTS = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12)


@given(WEIGHTS, st.floats(0.2, 1.0), st.floats(0.01, 2.0), U64, st.integers(0, 9999), st.floats(0.0, 1.0))
def test_weights_stay_probabilities_and_text_stays_a_part_of_them(weights, mass, temperature, key, position, share):
    candidates = make_candidates()
    p = distribution(weights) * np.float32(mass)
    for noise_key in (0, key):
        write(candidates, p, p * np.float32(share))
        weigh_draws(candidates, len(p), Sampling(temperature, np.uint64(noise_key)), position)
        found, part = candidates.p[: len(p)], candidates.from_text[: len(p)]
        assert np.isfinite(found).all()
        assert (found >= 0).all()
        assert found.sum() <= 1.0 + 1e-5
        assert part == pytest.approx(found * share, rel=1e-3, abs=1e-6)


@given(WEIGHTS, st.floats(0.1, 2.0), st.integers(1, 1 << 63), st.integers(0, 2), st.integers(0, 9999))
def test_where_the_whole_distribution_is_known_the_best_candidate_is_what_the_target_draws(
    weights, temperature, seed, choice, position
):
    candidates = make_candidates()
    p = distribution(weights)
    write(candidates, p, p)
    weigh_draws(candidates, len(p), Sampling(temperature, np.uint64(request_key(seed, choice))), position)
    scores = np.log(p.astype(np.float64)) / temperature
    scores += gumbel_row((seed, choice, position), VOCAB, np.arange(len(p)) * 3)
    best, *others = np.sort(scores)[::-1]
    if not others or best - others[0] > 1e-3:
        assert candidates.p[: len(p)].argmax() == scores.argmax()
