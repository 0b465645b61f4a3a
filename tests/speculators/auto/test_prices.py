"""Prices of steps, the account, and how nodes are shared out: for the most time that all requests save together."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import Branch, StepTime
from engine.step_cost import StepCosts
from speculators.auto.prices import LEAST_NODE, PLAIN_EVERY, Account, Prices
from speculators.auto.sharing import share_out
from speculators.auto.streams import CLASSES, class_of
from tests.speculators.auto.auto_sources import FREE, line

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
    assert prices.of(16, 0, 64).by_nodes[64] == pytest.approx(4.5 + 64 * LEAST_NODE * 2.5)
    assert prices.of(16, 0, 64).between(8, 64) == pytest.approx(
        prices.of(16, 0, 64).by_nodes[64] - 2.75 - 8 * LEAST_NODE * 2.5
    )


@pytest.mark.parametrize("slower", [1.0, 1.7, 0.5, 8.0])
def test_plain_steps_alone_move_the_plain_price_and_only_of_their_bucket(slower):
    prices = Prices(PRICED)
    for _ in range(100):
        prices.observe(drafted(2.5 * 3.0))
    assert prices.of(16, 100.0, 4).factor == 1.0
    for _ in range(300):
        prices.observe(plain(2.5 * slower))
    assert prices.of(16, 100.0, 4).factor == pytest.approx(slower, rel=0.02)
    assert prices.of(20, 300.0, 4).factor == prices.of(16, 100.0, 4).factor  # one bucket
    assert prices.of(1, 100.0, 4).factor == pytest.approx(slower, rel=0.02)  # a new one begins with the last factor


def test_a_single_outlier_moves_the_price_little():
    prices = Prices(PRICED)
    for _ in range(50):
        prices.observe(plain(2.5))
    prices.observe(plain(250.0))
    assert prices.of(16, 100.0, 4).factor < 1.07


@pytest.mark.parametrize(("times", "slower"), [(1.0, 1.6), (3.0, 1.0), (5.0, 1.6), (0.3, 1.0)])
def test_the_time_that_nodes_add_is_learnt_apart_from_the_plain_price(times, slower):
    prices = Prices(PRICED)
    expected = prices.of(16, 100.0, 8)
    costs = {n: expected.plain + times * (expected.seconds(n, 16) - expected.plain) for n in (0, 8)}
    for step in range(3000):
        if step % 3:
            prices.observe(plain(slower * 2.5))
        else:
            prices.observe(drafted(slower * costs[8 * (step % 2)], 8 * (step % 2), n_read=16))
    price = prices.of(16, 100.0, 8)
    assert price.factor == pytest.approx(slower, rel=0.05)
    assert price.slope == pytest.approx(times, rel=0.1)
    assert price.seconds(8, 16) == pytest.approx(slower * costs[8], rel=0.05)


def test_a_plain_step_is_due_often_at_first_and_then_every_so_many_steps():
    prices, gaps, n = Prices(PRICED), [], 0
    for _ in range(2000):
        if prices.is_plain_due(16, 100.0):
            gaps.append(n)
            n = 0
            prices.observe(plain(2.5))
        else:
            n += 1
            prices.observe(drafted(3.0))
    assert gaps == sorted(gaps)
    assert gaps[0] < 16
    assert gaps[-1] == PLAIN_EVERY


def test_an_account_holds_its_capacity_and_gets_its_share_of_the_time():
    account = Account(0.01, 4.0)
    assert account.room(2.0) == 8.0
    account.add(0.0, -9.0, 2.0)
    assert account.room(2.0) == -1.0
    account.add(50.0, 0.0, 2.0)
    assert account.room(2.0) == -0.5
    account.add(0.0, 50.0, 2.0)
    assert account.room(2.0) == 8.0, "what drafts save pays only what they cost before"
    account.add(0.0, 0.0, 0.5)
    assert account.room(0.5) == pytest.approx(7.92), "a small step between large ones does not empty it"
    for _ in range(300):
        account.add(0.0, 0.0, 0.5)
    assert account.room(0.5) == 2.0
    account.add(0.0, -100.0, 0.5)
    assert account.room(0.5) == -2.0, "as much as it can hold"


@st.composite
def step_costs(draw):
    made = {}
    for batch in draw(st.sets(st.integers(1, 6), min_size=1, max_size=3)):
        rows = sorted(draw(st.sets(st.integers(batch, 20), min_size=1, max_size=5)))
        steps = draw(st.lists(st.floats(0.0, 2e-3), min_size=len(rows), max_size=len(rows)))
        made[batch] = (tuple(rows), tuple((1e-3 + np.cumsum(steps)).tolist()))
    return StepCosts(made)


PROBABILITIES = st.lists(st.floats(1e-3, 1.0), max_size=4).map(lambda values: sorted(values, reverse=True))
REACHES = st.lists(PROBABILITIES, min_size=1, max_size=3)
ONES = [1.0] * CLASSES


def siblings(reach):
    return Branch(range(len(reach)), "", [-1] * len(reach), scores=reach)


@given(
    REACHES,
    st.integers(0, 4),
    step_costs() | st.sampled_from([FREE, line(1.01)]),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.sampled_from([1e-4, 1e-3, 0.5]),
    st.sampled_from([0.0, 0.05]),
    st.sampled_from([1.5e-3, 5e-3, 10.0]),
)
def test_no_other_way_to_share_out_saves_more(reaches, n_others, costs, reads, token, read, limit):
    batch = len(reaches) + n_others
    reads = reads[: len(reaches)]
    price = Prices(costs).of(batch, 0, sum(map(len, reaches)))
    price.factor, price.slope, price.reading, price.read_row = 1.2, 1.5, 1e-4, 1e-5

    def value(counts):
        seconds = price.seconds(sum(counts), sum(reads) + sum(n for n, read in zip(counts, reads, strict=True) if read))
        gain = sum(sum(reach[:n]) for reach, n in zip(reaches, counts, strict=True))
        gain += read * sum(n for n, is_read in zip(counts, reads, strict=True) if is_read)
        return (gain * token - seconds) if seconds <= limit or not any(counts) else -math.inf

    counts = share_out(
        [(siblings(reach), ONES, read) for reach, read in zip(reaches, reads, strict=True)],
        sum(reads),
        price,
        token,
        read,
        limit,
    )
    ways = itertools.product(*(range(len(reach) + 1) for reach in reaches))
    prefixes = [c for c in ways if _is_best_first(c, reaches)]
    assert value(counts) == pytest.approx(max(map(value, prefixes)), rel=1e-6, abs=1e-9)


def _is_best_first(counts, reaches):
    """No node that was left out is more probable than one that was taken."""
    taken = [p for reach, n in zip(reaches, counts, strict=True) for p in reach[:n]]
    left = [p for reach, n in zip(reaches, counts, strict=True) for p in reach[n:]]
    return min(taken, default=1.0) >= max(left, default=0.0)


def test_claims_are_calibrated_by_class_and_never_rise_along_a_branch():
    price = Prices(FREE).of(1, 0, 3)
    chain = Branch([1, 2, 3], "", scores=[0.9, 0.5, 0.2])
    for factors, count in ((ONES, 3), ([1.0, 0.0, 5.0, 1.0, 1.0, 1.0], 1), ([0.0] * CLASSES, 0)):
        assert share_out([(chain, factors, False)], 0, price, 1.0, 0.0, 10.0) == [count]
    for scores in ([math.nan, 0.5], [math.inf, 0.5]):
        assert share_out([(Branch([1, 2], "", scores=scores), ONES, False)], 0, price, 1.0, 0.0, 10.0) == [0]
    tree = Branch([1, 2, 3, 4], "", [-1, -1, 0, 1], scores=[0.6, 0.3, 0.9, 0.9])
    expensive = Prices(line(0.4)).of(1, 0, 4)  # a node must be worth 0.4
    assert share_out([(tree, ONES, False)], 0, expensive, 1.0, 0.0, 10.0) == [1], "0.6, 0.3, 0.54 and 0.27"
    assert share_out([(tree, [2.0] * CLASSES, False)], 0, expensive, 1.0, 0.0, 10.0) == [4]


def test_classes_halve():
    assert [class_of(p) for p in (1.0, 0.51, 0.5, 0.26, 0.25, 0.1, 1 / 31, 1 / 33, 0.0)] == [0, 0, 1, 1, 2, 3, 4, 5, 5]
