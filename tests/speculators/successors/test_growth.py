"""Drafted trees and learning from their answers, compared with slow code; candidates weighed by noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.best_first.arrays import LIKELY
from engine.sampling.keys import GUMBEL_DOMAIN, compiled_mix64, mix64, noise_bits, position_key, request_key
from engine.sampling.noise import gumbel_row
from engine.tree import ROOT
from speculators.successors.candidates import make_candidates
from speculators.successors.config import SOURCES, SuccessorConfig
from speculators.successors.draws import Sampling, exponential, weigh_draws
from speculators.successors.growth import (
    LEAST_SHARE,
    MAX_CHILDREN,
    PROPOSERS,
    WORTHLESS,
    addresses_of_tree,
    draft,
    make_successor_tree,
)
from speculators.successors.learning import learn_step
from speculators.successors.mix import mix_successors
from speculators.successors.models import SuccessorModels
from speculators.successors.table import learn_text, put_successors
from speculators.successors.vocabulary import VocabularyRows
from tests.speculators.successors.successor_runs import BOTH, array, row_of, tail_of

VOCAB = 64
CONFIG = SuccessorConfig(text_width=4, top_k=4, recent=6)
TEXTS = st.lists(st.integers(0, 5), min_size=1, max_size=60)
SAMPLINGS = st.tuples(st.sampled_from([0.0, 0.5, 0.8, 1.0]), st.sampled_from([0, 0, 12345, 2**64 - 3]))


def new_model(text, seed, n_learnt):
    """Return a model that counted ``text[:n_learnt]``, with random rows of the target after some of its contexts."""
    rng = np.random.default_rng(seed)
    rows = np.array([rng.choice(8, 4, replace=False) for _ in range(VOCAB * (seed % 2))], np.int32).reshape(-1, 4)
    weights = np.array([0.4, 0.2, 0.1, 0.05], np.float32)
    pairs = rng.permutation([(a << 32) | b for a in range(8) for b in range(8)])[: 30 * (seed % 2)]
    pair_ids = np.array([rng.choice(8, 4, replace=False) for _ in pairs], np.int32).reshape(-1, 4)
    pair_rows = pairs, pair_ids, np.tile(weights, (len(pairs), 1))
    read = VocabularyRows.of(rows, np.tile(weights, (len(rows), 1)), pair_rows)
    model = SuccessorModels(CONFIG, BOTH, read).new(1000)
    learn_text(model.text, array(text[:n_learnt]), 0)
    for end in rng.integers(1, len(text) + 1, 10):
        ids = rng.choice(8, 4, replace=False).astype(np.int32)
        put_successors(model.target, tail_of(text[:end]), ids, rng.dirichlet([0.5] * 5)[:4].astype(np.float32))
    model.recent_trust[0] = 0.5
    model.recent_ids[:] = rng.choice(VOCAB, len(model.recent_ids), replace=False)
    model.recent_weights[:] = 0.1
    return model


def successors(model, context, sampling, reach):
    """Return the MAX_CHILDREN most probable successors of a context: token -> probability, ranked sources.

    Greedy drafts skip contributions too small to matter after a path of probability ``reach``.
    """
    least = 0.0 if sampling.temperature else WORTHLESS / float(np.float32(reach))
    candidates = model.candidates
    mix_successors(model, tail_of(context), least)
    weigh_draws(candidates, sampling, len(context))
    n = candidates.n[0]
    rows = zip(candidates.p[:n].tolist(), candidates.ids[:n].tolist(), candidates.parts[:n].tolist(), strict=True)
    return {token: (p, ranked(parts)) for p, token, parts in sorted(rows, reverse=True)[:MAX_CHILDREN]}


def ranked(parts):
    """Return the sources with a share of the sum, largest first; the first of equals wins."""
    places = [place for place in range(3) if parts[place] > LEAST_SHARE * sum(parts)]
    return tuple(SOURCES[place] for place in sorted(places, key=lambda place: -parts[place]))


@given(TEXTS, st.integers(0, 99), st.integers(0, 40), st.sampled_from([1e-5, 1e-3, 0.05]), SAMPLINGS)
def test_grown_trees_hold_exactly_the_probable_paths(text, seed, budget, least, how):
    model = new_model(text, seed, n_learnt := len(text) // 2)
    sampling, tree = Sampling(how[0], np.uint64(how[1])), make_successor_tree(40)
    addresses = SuccessorModels.addressed(model).addresses, addresses_of_tree(tree)
    n = draft(*addresses, array(text), n_learnt, budget, least, *sampling)  # counts the rest of the text first
    assert n <= budget
    tokens, parents, scores = (part[:n].tolist() for part in (tree.grown.tokens, tree.grown.parents, tree.grown.scores))
    assert len(set(zip(parents, tokens, strict=True))) == n
    paths: dict[int, list[int]] = {ROOT: []}
    reach = {ROOT: 1.0}
    known = {ROOT: successors(model, text, sampling, 1.0)}
    for node, (token, parent, score) in enumerate(zip(tokens, parents, scores, strict=True)):
        assert ROOT <= parent < node
        assert 0.0 < score <= 1.0 + 1e-6
        expected, proposers = known[parent][token]
        assert score == pytest.approx(expected, rel=1e-5)
        assert PROPOSERS[tree.proposers[node]] == proposers
        paths[node], reach[node] = [*paths[parent], token], reach[parent] * score
        assert reach[node] == pytest.approx(tree.grown.reach[node + 1], rel=1e-4)
        assert reach[node] >= least * (1 - 1e-4)
        known[node] = successors(model, text + paths[node], sampling, tree.grown.reach[node + 1])
    for parent, children in known.items():  # siblings: the best, best first
        taken = [score for score, above in zip(scores, parents, strict=True) if above == parent]
        best = sorted((p for p, _ in children.values()), reverse=True)
        assert taken == sorted(taken, reverse=True)
        assert taken == pytest.approx(best[: len(taken)], rel=1e-5)
        if n < budget and reach[parent] * LIKELY > least * 1.001:  # no child was left out for lack of room
            assert all(reach[parent] * p <= least * 1.001 for p in best[len(taken) :])


@given(TEXTS, st.data())
def test_a_step_replaces_the_targets_row_after_each_scored_node(text, data):
    n = data.draw(st.integers(0, 8))
    tokens = data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))
    parents = [data.draw(st.integers(ROOT, i - 1)) for i in range(n)]
    nodes = sorted(data.draw(st.sets(st.integers(ROOT, n - 1), min_size=1)))
    n_before = data.draw(st.integers(1, len(text)))
    rng = np.random.default_rng(n)
    ids = np.array([rng.choice(VOCAB, 4, replace=False) for _ in nodes], np.int32)
    weights = rng.uniform(0.0, 0.25, ids.shape).astype(np.float32)
    model = SuccessorModels(CONFIG, BOTH).new(1000)
    answers = array(tokens), array(parents), array(nodes), ids, weights
    learn_step(SuccessorModels.addressed(model).addresses, array(text), 0, 0.0, n_before, *answers, 0.9, 0)
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
    for gram, row in expected.items():
        assert row_of(model.target, list(gram)) == row


U64 = st.integers(0, (1 << 64) - 1)


@given(U64, st.integers(0, 3), st.integers(0, 1 << 20), st.lists(st.integers(0, 262143), min_size=1, max_size=30))
def test_the_noise_of_a_candidate_is_the_noise_that_the_target_draws_by(seed, choice, position, ids):
    key = compiled_mix64(np.uint64(request_key(seed, choice)) ^ np.uint64(position))
    assert int(compiled_mix64(np.uint64(seed))) == mix64(seed)
    assert int(key) == position_key((seed, choice, position), GUMBEL_DOMAIN)
    ids = np.array(ids)
    found = np.array([exponential(np.uint64(key), int(i)) for i in ids])
    bits = [int(noise_bits(np.uint64(key), np.uint64(i))) for i in ids]
    assert np.round(np.exp(-found) * 2.0**32 - 0.5).astype(np.uint32).tolist() == bits
    assert -np.log(found) == pytest.approx(gumbel_row((seed, choice, position), 262144, ids), rel=1e-6, abs=1e-6)


def candidates_with(p):
    candidates, n = make_candidates(), len(p)
    candidates.n[0], candidates.ids[:n], candidates.p[:n] = n, np.arange(n) * 3, p
    return candidates


def normalized(weights):
    return (np.array(weights) / sum(weights)).astype(np.float32)


WEIGHTS = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12)


@given(WEIGHTS, st.floats(0.2, 1.0), st.floats(0.01, 2.0), U64, st.integers(0, 9999))
def test_weighed_candidates_stay_probabilities(weights, mass, temperature, key, position):
    for noise_key in (0, key):
        candidates = candidates_with(normalized(weights) * np.float32(mass))
        weigh_draws(candidates, Sampling(temperature, np.uint64(noise_key)), position)
        found = candidates.p[: len(weights)]
        assert np.isfinite(found).all()
        assert (found >= 0).all()
        assert found.sum() <= 1.0 + 1e-5


@given(WEIGHTS, st.floats(0.1, 2.0), st.integers(1, 1 << 63), st.integers(0, 2), st.integers(0, 9999))
def test_the_best_candidate_of_a_known_distribution_is_the_token_that_the_target_draws(
    weights, temperature, seed, choice, position
):
    p = normalized(weights)
    candidates = candidates_with(p)
    weigh_draws(candidates, Sampling(temperature, np.uint64(request_key(seed, choice))), position)
    scores = np.log(p.astype(np.float64)) / temperature
    scores += gumbel_row((seed, choice, position), VOCAB, np.arange(len(p)) * 3)
    best, *others = np.sort(scores)[::-1]
    if not others or best - others[0] > 1e-3:
        assert candidates.p[: len(p)].argmax() == scores.argmax()
