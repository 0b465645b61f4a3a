"""Prices of steps, and how nodes are shared out: for the most tokens per second of all requests together."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.protocol import StepTime
from engine.step_cost import StepCosts
from speculators.auto.prices import MOST, Prices
from speculators.auto.sharing import share_out
from speculators.auto.sources import FIRST_DRAFTING
from tests.speculators.auto.auto_sources import FREE, line, shared_out

PRICED = StepCosts(
    {1: ((1, 65), (1.0, 2.0)), 16: ((16, 80), (3.0, 5.0))}, {0: ((1,), (0.5,)), 2048: ((1,), (0.9,))}, {16: 2.5}
)


def plain(seconds):
    return StepTime(seconds, 16, 16, 100.0)


def drafted(seconds, n_nodes=8, n_read=0):
    return StepTime(seconds, 16, 16 + n_nodes, 100.0, n_read)


def test_prices_grow_with_batches_texts_and_nodes():
    prices = Prices(PRICED)
    assert prices.of(64, 0, 8).plain > prices.of(16, 0, 8).plain * 1.5
    assert prices.of(16, 4000, 8).plain > prices.of(16, 0, 8).plain * 1.5
    assert prices.of(16, 0, 8).plain == pytest.approx(2.5)
    assert prices.of(16, 0, 64).by_nodes[64] == pytest.approx(4.5)


@pytest.mark.parametrize(("slower", "factor"), [(1.0, 1.0), (1.7, 1.7), (0.5, 0.5), (50.0, MOST), (0.001, 1 / MOST)])
def test_a_correction_follows_measured_steps_within_bounds(slower, factor):
    prices = Prices(PRICED)
    for _ in range(300):
        prices.observe(plain(2.5 * slower))
    assert prices.of(16, 100.0, 4).factor == pytest.approx(factor, rel=0.02)
    assert prices.of(20, 300.0, 4).factor == prices.of(16, 100.0, 4).factor  # one bucket
    assert prices.of(1, 100.0, 4).factor == prices.of(16, 3000.0, 4).factor == 1.0  # others


@pytest.mark.parametrize(("more", "slower"), [(0.0, 1.6), (0.4, 1.0), (1.0, 1.6)])
def test_the_extra_time_of_steps_with_drafts_is_learnt_apart_from_the_correction(more, slower):
    prices = Prices(PRICED)
    expected = prices.of(16, 100.0, 8)
    costs = {n: float(expected.by_nodes[n]) + expected.reading + expected.read_row * 16 + more for n in (0, 8)}
    for step in range(3000):
        if step % 3:
            prices.observe(plain(slower * 2.5))
        else:
            prices.observe(drafted(slower * costs[8 * (step % 2)], 8 * (step % 2), n_read=16))
    price = prices.of(16, 100.0, 8)
    assert price.factor == pytest.approx(slower, rel=0.05)
    assert price.extra == pytest.approx(more, abs=0.1)


def test_extra_time_of_drafts_is_forgotten_without_drafts_and_never_negative():
    prices = Prices(PRICED)
    for _ in range(200):
        prices.observe(drafted(2.0 * 3.0))
        prices.observe(plain(2.5))
    high = prices.of(16, 100.0, 8).extra
    assert 1.0 < high <= 2.5  # a plain step at most
    for _ in range(20000):
        prices.observe(plain(2.5))
    assert 0.0 <= prices.of(16, 100.0, 8).extra < 0.01 * high
    for _ in range(200):
        prices.observe(drafted(0.5))
    assert prices.of(16, 100.0, 8).extra == 0.0


@st.composite
def step_costs(draw):
    made = {}
    for batch in draw(st.sets(st.integers(1, 6), min_size=1, max_size=3)):
        rows = sorted(draw(st.sets(st.integers(batch, 20), min_size=1, max_size=5)))
        steps = draw(st.lists(st.floats(0.0, 2e-3), min_size=len(rows), max_size=len(rows)))
        made[batch] = (tuple(rows), tuple((1e-3 + np.cumsum(steps)).tolist()))
    return StepCosts(made)


PROBABILITIES = st.lists(st.floats(1e-3, 1.0), max_size=4).map(lambda values: sorted(values, reverse=True))
REACHES = st.lists(PROBABILITIES, max_size=3)


@given(
    REACHES, st.integers(0, 4), step_costs() | st.sampled_from([FREE, line(1.01)]), st.sampled_from([0.0, 0.01, 0.2])
)
@example([[0.0234375]], 0, FREE, 0.03)  # 2.3 per cent more tokens are less than the margin
def test_no_other_way_to_share_out_gives_more_tokens_per_second(reaches, n_others, costs, margin):
    batch = max(len(reaches) + n_others, 1)

    def rate(counts):
        seconds = float(costs.seconds(batch, [batch + sum(counts)])[0])
        seconds += FIRST_DRAFTING * len(reaches) if sum(counts) else 0.0
        return (batch + sum(sum(reach[:n]) for reach, n in zip(reaches, counts, strict=True))) / seconds

    counts = shared_out(costs, reaches, batch, margin)
    best = max(map(rate, itertools.product(*(range(len(reach) + 1) for reach in reaches))))
    needed = rate([0] * len(reaches)) * (1.0 + margin)
    if sum(counts):
        assert math.isclose(rate(counts), best, rel_tol=1e-9)
        assert best >= needed * (1.0 - 1e-9)
    else:
        assert best <= needed * (1.0 + 1e-9)
    taken = [p for reach, n in zip(reaches, counts, strict=True) for p in reach[:n]]
    left = [p for reach, n in zip(reaches, counts, strict=True) for p in reach[n:]]
    assert min(taken, default=1.0) >= max(left, default=0.0)


@pytest.mark.parametrize("seed", range(20))
def test_shares_with_read_back_rows_are_those_of_sorting_all_nodes(seed):
    """The slow way: every number of best nodes, one after another."""
    rng = np.random.default_rng(seed)
    lists = [sorted(rng.choice([0.9, 0.5, 0.3, 0.1, 0.02], rng.integers(0, 9)), reverse=True) for _ in range(5)]
    reads_back = (rng.random(5) < 0.5).tolist()
    price = Prices(PRICED).of(16, 100.0, sum(map(len, lists)))
    price.factor, price.extra = 1.3, float(rng.random())
    drafting = float(0.2 * rng.random())
    nodes = sorted((-p, i, place) for i, one in enumerate(lists) for place, p in enumerate(one))
    best, expected = 16 / price.now, [0] * 5
    for n in range(1, len(nodes) + 1):
        taken = nodes[:n]
        n_read = sum(reads_back) + sum(reads_back[i] for _, i, _ in taken)
        read = price.reading + price.read_row * n_read if any(reads_back) else 0.0
        seconds = float(price.by_nodes[n]) + price.extra + read
        rate = (16 + sum(-p for p, _, _ in taken)) / (1.3 * seconds + drafting)
        if rate > best * (1 + 1e-12):
            best, expected = rate, [sum(i == owner for _, owner, _ in taken) for i in range(5)]
    assert share_out(lists, reads_back, price, drafting, 0.0) == expected
