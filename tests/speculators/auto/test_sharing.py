"""How nodes are shared out: as many as give all requests together the most tokens per second."""

import itertools
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.step_cost import StepCosts
from speculators.auto.sources import FIRST_DRAFTING
from tests.support.auto_sources import FREE, line, shared_out


@st.composite
def step_costs(draw):
    made = {}
    for batch in draw(st.sets(st.integers(1, 6), min_size=1, max_size=3)):
        rows = sorted(draw(st.sets(st.integers(batch, 20), min_size=1, max_size=5)))
        steps = draw(st.lists(st.floats(0.0, 2e-3), min_size=len(rows), max_size=len(rows)))
        made[batch] = (tuple(rows), tuple((1e-3 + np.cumsum(steps)).tolist()))
    return StepCosts(made)


probabilities = st.lists(st.floats(1e-3, 1.0), max_size=4).map(lambda values: sorted(values, reverse=True))


@settings(max_examples=100)
@given(st.lists(probabilities, max_size=3), st.integers(0, 4), step_costs(), st.sampled_from([0.0, 0.01, 0.2]))
def test_no_other_way_to_share_out_gives_more_tokens_per_second(reaches, n_others, costs, margin):
    batch = max(len(reaches) + n_others, 1)

    def rate(counts):
        seconds = float(costs.seconds(batch, [batch + sum(counts)])[0])
        seconds += FIRST_DRAFTING * len(reaches) if sum(counts) else 0.0
        return (batch + sum(sum(reach[:n]) for reach, n in zip(reaches, counts, strict=True))) / seconds

    counts = shared_out(costs, reaches, batch, margin)
    assert len(counts) == len(reaches)
    assert all(0 <= n <= len(reach) for n, reach in zip(counts, reaches, strict=True))
    best = max(map(rate, itertools.product(*(range(len(reach) + 1) for reach in reaches))))
    nothing = rate([0] * len(reaches))
    if sum(counts):
        assert math.isclose(rate(counts), best, rel_tol=1e-9)
        assert best >= nothing * (1.0 + margin) * (1.0 - 1e-9)
    else:
        assert best <= nothing * (1.0 + margin) * (1.0 + 1e-9)


@given(st.lists(probabilities, max_size=3), step_costs())
def test_the_most_probable_nodes_of_all_requests_come_first(reaches, costs):
    counts = shared_out(costs, reaches, max(len(reaches), 1))
    taken = [p for reach, n in zip(reaches, counts, strict=True) for p in reach[:n]]
    left = [p for reach, n in zip(reaches, counts, strict=True) for p in reach[n:]]
    assert min(taken, default=1.0) >= max(left, default=0.0)


@given(st.lists(probabilities, max_size=3))
def test_free_nodes_are_all_taken_and_dear_ones_never(reaches):
    batch = max(len(reaches), 1)
    assert shared_out(line(1.01), reaches, 1) == [0] * len(reaches)
    pays = sum(map(sum, reaches)) > 0.01 * batch + 1e-2  # the margin, and drafting
    if pays:
        assert shared_out(FREE, reaches, batch) == [len(reach) for reach in reaches]


def test_the_margin_is_what_a_draft_must_promise_more():
    costs = line(0.1)  # one node of 0.2: 1.2 tokens in 1.1002 s, that is 9.07 per cent more
    for margin, count in ((0.0, 1), (0.09, 1), (0.092, 0), (0.5, 0)):
        assert shared_out(costs, [[0.2]], 1, margin) == [count]


def test_requests_without_a_draft_make_a_step_worth_less_to_the_others():
    costs = StepCosts({1: ((1, 9), (1.0, 1.8)), 8: ((8, 16), (1.0, 1.8))})  # 0.1 s a node, on top of 1 s
    assert shared_out(costs, [[0.3, 0.2]], 1) == [2]
    assert shared_out(costs, [[0.3, 0.2]], 8) == [0]  # 8.3 tokens in 1.1 s, instead of 8 in 1 s
