"""What the target is likely to draw, and what knowing its noise makes of it: the noise is the engine's own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling.keys import GUMBEL_DOMAIN, mix64, position_key, request_key
from engine.sampling.noise import _bits_numpy, _counters, gumbel_row
from speculators.successors.candidates import make_candidates
from speculators.successors.draws import UNSEEN, Sampling, exponential, weigh_draws
from speculators.successors.draws import mix64 as compiled_mix64

VOCAB = 40
U64 = st.integers(0, (1 << 64) - 1)


@given(U64)
def test_the_compiled_mixer_is_the_engines(x):
    assert int(compiled_mix64(np.uint64(x))) == mix64(x)


@given(U64, st.integers(0, 3), st.integers(0, 1 << 20), st.lists(st.integers(0, 262143), min_size=1, max_size=30))
def test_the_noise_of_a_candidate_is_the_noise_the_target_draws_by(seed, choice, position, ids):
    key = compiled_mix64(np.uint64(request_key(seed, choice)) ^ np.uint64(position))
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


@given(WEIGHTS, st.floats(0.2, 1.0), U64, st.integers(0, 9999))
def test_greedy_candidates_share_most_of_what_is_left_and_know_no_noise(weights, mass, key, position):
    candidates = make_candidates()
    p = distribution(weights) * np.float32(mass)
    write(candidates, p, p)
    weigh_draws(candidates, len(p), Sampling(0.0, np.uint64(key)), position)
    total = float(p.sum())
    shared = candidates.p[: len(p)].copy()
    assert shared == pytest.approx(p / (total + UNSEEN * max(1.0 - total, 1e-3)), rel=1e-3)
    weigh_draws(candidates, 0, Sampling(1.0, np.uint64(key)), position)
    assert (candidates.p[: len(p)] == shared).all()


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


@given(WEIGHTS, st.floats(0.3, 1.0), st.floats(0.02, 0.5))
def test_a_low_temperature_makes_the_best_candidate_surer(weights, mass, temperature):
    """Towards temperature 0 the target follows its argmax, and that is the best candidate if the model is right."""
    candidates = make_candidates()
    p = distribution([*weights, 2.0 * max(weights)]) * np.float32(mass)
    write(candidates, p, p)
    weigh_draws(candidates, len(p), Sampling(temperature, np.uint64(0)), 0)
    assert candidates.p[len(p) - 1] >= p[-1] - 1e-6
