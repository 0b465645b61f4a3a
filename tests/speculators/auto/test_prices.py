"""Prices of steps: what is measured at the start, and what running steps add to it."""

import numpy as np
import pytest

from engine.protocol import StepTime
from engine.step_cost import StepCosts
from speculators.auto.prices import MOST, Prices
from speculators.auto.sharing import share_out

PRICED = StepCosts(
    {1: ((1, 65), (1.0, 2.0)), 16: ((16, 80), (3.0, 5.0))}, {0: ((1,), (0.5,)), 2048: ((1,), (0.9,))}, {16: 2.5}
)


def plain(seconds):
    return StepTime(seconds, 16, 16, 100.0)


def drafted(seconds, n_nodes=8, n_read=0):
    return StepTime(seconds, 16, 16 + n_nodes, 100.0, n_read)


def test_prices_know_large_batches_and_long_texts():
    prices = Prices(PRICED)
    assert prices.of(64, 0, 8).plain > prices.of(16, 0, 8).plain * 1.5
    assert prices.of(16, 4000, 8).plain > prices.of(16, 0, 8).plain * 1.5
    assert prices.of(16, 0, 8).plain == pytest.approx(2.5)
    assert prices.of(16, 0, 64).wider[64] == pytest.approx(4.5)


@pytest.mark.parametrize(("slower", "factor"), [(1.0, 1.0), (1.7, 1.7), (0.5, 0.5), (50.0, MOST), (0.001, 1 / MOST)])
def test_a_correction_follows_the_clock_within_bounds(slower, factor):
    prices = Prices(PRICED)
    for _ in range(300):
        prices.observe(plain(2.5 * slower))
    assert prices.of(16, 100.0, 4).factor == pytest.approx(factor, rel=0.02)
    assert prices.of(20, 300.0, 4).factor == prices.of(16, 100.0, 4).factor  # one bucket
    assert prices.of(1, 100.0, 4).factor == prices.of(16, 3000.0, 4).factor == 1.0  # others


def test_one_strange_step_moves_a_correction_little():
    prices = Prices(PRICED)
    prices.observe(plain(1e6))
    prices.observe(drafted(1e6))
    price = prices.of(16, 100.0, 4)
    assert price.factor <= 1.11
    assert price.extra <= 0.1 * price.plain


@pytest.mark.parametrize("slower", [1.0, 1.6])
@pytest.mark.parametrize("more", [0.0, 0.4, 1.0])
def test_what_steps_with_drafts_take_more_than_their_curve_is_learnt_beside_the_clock(more, slower):
    prices = Prices(PRICED)
    expected = prices.of(16, 100.0, 8)
    costs = {n: float(expected.wider[n]) + expected.reading + expected.read_row * 16 + more for n in (0, 8)}
    for step in range(3000):
        if step % 3:
            prices.observe(plain(slower * 2.5))
        else:
            prices.observe(drafted(slower * costs[8 * (step % 2)], 8 * (step % 2), n_read=16))
    price = prices.of(16, 100.0, 8)
    assert price.factor == pytest.approx(slower, rel=0.05)
    assert price.extra == pytest.approx(more, abs=0.1)


def test_what_is_never_drafted_becomes_cheap_again_and_never_cheaper_than_measured():
    prices = Prices(PRICED)
    for _ in range(200):
        prices.observe(drafted(2.0 * 3.0))
        prices.observe(plain(2.5))
    dear = prices.of(16, 100.0, 8).extra
    assert 1.0 < dear <= 2.5  # a plain step at most
    for _ in range(20000):
        prices.observe(plain(2.5))
    assert 0.0 <= prices.of(16, 100.0, 8).extra < 0.01 * dear
    for _ in range(200):
        prices.observe(drafted(0.5))
    assert prices.of(16, 100.0, 8).extra == 0.0


def test_a_draft_must_gain_what_such_steps_take_more():
    prices = Prices(PRICED)
    price = prices.of(16, 100.0, 8)
    lists, heard = [[0.5] * 4] * 2, [False] * 2
    assert sum(share_out(lists, heard, price, 0.0, 0.0)) == 8
    price.extra = 2.0
    assert sum(share_out(lists, heard, price, 0.0, 0.0)) == 0


@pytest.mark.parametrize("seed", range(40))
def test_shares_are_those_of_sorting_all_nodes(seed):
    """The slow way: every number of best nodes, one after another."""
    rng = np.random.default_rng(seed)
    lists = [sorted(rng.choice([0.9, 0.5, 0.3, 0.1, 0.02], rng.integers(0, 9)), reverse=True) for _ in range(5)]
    heard = (rng.random(5) < 0.5).tolist()
    prices = Prices(PRICED)
    price = prices.of(16, 100.0, sum(map(len, lists)))
    price.factor, price.extra = 1.3, float(rng.random())
    drafting = float(0.2 * rng.random())
    nodes = sorted(((-p, place, i) for i, one in enumerate(lists) for place, p in enumerate(one)), key=lambda x: x[0])
    nodes.sort(key=lambda node: (node[0], node[2], node[1]))
    best, wanted = 16 / price.now, [0] * 5
    for n in range(1, len(nodes) + 1):
        taken = nodes[:n]
        n_read = sum(heard) + sum(heard[i] for _, _, i in taken)
        seconds = float(price.wider[n]) + price.extra + (price.reading + price.read_row * n_read if any(heard) else 0.0)
        rate = (16 + sum(-p for p, _, _ in taken)) / (1.3 * seconds + drafting)
        if rate > best * (1 + 1e-12):
            best, wanted = rate, [sum(i == owner for _, _, owner in taken) for i in range(5)]
    assert share_out(lists, heard, price, drafting, 0.0) == wanted
