"""``auto`` is never slower than plain decoding by more than its account allows, whatever sources and costs do."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol import Needs, RequestView
from engine.step_cost import StepCosts
from speculators.auto.config import AutoConfig
from speculators.auto.lane import CAPACITY
from speculators.auto.speculator import Auto
from speculators.trained import TrainedDrafts
from tests.speculators.auto.simulated_lane import Clock, GuessingTextSource, SimulatedLane, Source

Seconds = Callable[[float, int, int, int], float]
LOSS = AutoConfig().loss
CHARGED_LATE = 1.0  # plain steps: steps may take longer than their prices said


def gpu(clock: float, n: int, n_nodes: int, n_read: int) -> float:
    """About an 8B on an H200: nodes are nearly free, and host work is not."""
    return 3.8e-3 + 2.5e-5 * n + 2e-6 * n_nodes + 5e-7 * n_read


def cpu(clock: float, n: int, n_nodes: int, n_read: int) -> float:
    """About SmolLM2 on a CPU: four rows cost as much as one, and then every row costs."""
    return 0.056 + 0.0035 * max(n + n_nodes - 4, 0)


def measured(seconds: Seconds) -> StepCosts:
    """Step times as they are measured at load."""
    sizes = {n: [n * (1 + k) for k in (0, 1, 2, 4, 8, 16)] for n in (1, 4, 16)}
    curves = {n: (tuple(rows), tuple(seconds(0.0, n, row - n, row) for row in rows)) for n, rows in sizes.items()}
    return StepCosts(curves, {}, {n: seconds(0.0, n, 0, 0) for n in (1, 16)}, 2e-6)


class Trace:
    """Two sources and a lane; ``text`` and ``every`` are how often their tokens are right."""

    def __init__(
        self,
        seconds: Seconds,
        text: Callable[[RequestView], float],
        every: Callable[[RequestView], float],
        claim: float = 0.6,
        noise: float = 0.0,
        known: Seconds | None = None,
        drafter: tuple[float, float] | None = None,
    ) -> None:
        self.clock = Clock()
        self.sources = [
            GuessingTextSource("text", self.clock, text, 4e-6, claim),
            Source("every", self.clock, every, 25e-6, claim, needs=Needs(node_top_k=4)),
        ]
        trained = [] if drafter is None else [TrainedDrafts("eagle")]
        self.auto = Auto([*self.sources, *trained], measured(known or seconds))  # type: ignore[list-item]
        self.lane = SimulatedLane(self.auto, self.clock, seconds, noise, drafter)

    def run(self, n_steps: int, streams: Callable[[int], int], life: int = 200) -> SimulatedLane:
        for number in range(n_steps):
            self.lane.set_streams(streams(number))
            if number % max(life // streams(number), 1) == life // 2:
                self.lane.replace_stream()
            self.lane.step()
        return self.lane


def always(p: float) -> Callable[[RequestView], float]:
    return lambda request: p


def promised(lane: SimulatedLane) -> float:
    """The ratio that the page promises: the account's share and capacity, and the error of the plain price."""
    return 1.0 - LOSS - max(lane.price_error, 0.0) - (CAPACITY + CHARGED_LATE) / lane.n_steps


@pytest.mark.parametrize("seconds", [gpu, cpu])
@pytest.mark.parametrize("streams", [1, 4, 16])
@pytest.mark.parametrize(("claim", "noise"), [(0.99, 0.0), (0.99, 0.05), (0.1, 0.0)])
def test_sources_that_are_always_wrong_cost_two_per_cent_at_most(seconds, streams, claim, noise):
    lane = Trace(seconds, always(0.0), always(0.02), claim, noise).run(600, lambda _: streams)
    assert lane.ratio > 0.98
    assert lane.ratio > promised(lane)


@pytest.mark.parametrize(("text", "every", "least"), [(0.0, 0.6, 1.9), (0.6, 0.6, 2.2), (0.8, 0.8, 3.6)])
def test_sources_that_are_right_gain_what_they_can(text, every, least):
    assert Trace(gpu, always(text), always(every)).run(400, lambda _: 4).ratio > least


@pytest.mark.parametrize("life", [200, 40])
@pytest.mark.parametrize(
    ("right", "cost", "asked"), [(0.8, 0.001, 0.9), (0.8, 0.1, 0.9), (0.0, 0.5, 0.1), (0.2, 1.0, 0.1)]
)
def test_the_drafter_drafts_only_where_its_drafts_are_worth_their_time(right, cost, asked, life):
    plain = gpu(0.0, 1, 0, 0)
    trace = Trace(gpu, always(0.0), always(0.5), drafter=(right, cost * plain))
    lane = trace.run(2000, lambda _: 1, life)
    assert lane.n_drafted / lane.n_steps == pytest.approx(asked, abs=0.1)
    without = Trace(gpu, always(0.0), always(0.5)).run(2000, lambda _: 1, life)
    assert lane.ratio > without.ratio * (1.2 if right > 0.5 else 0.9)


def test_trials_of_a_useless_drafter_do_not_end_the_drafts_of_other_sources():
    drafter = (0.0, 0.5 * cpu(0.0, 1, 0, 0))
    lane = Trace(cpu, always(0.0), always(0.25), drafter=drafter).run(1300, lambda _: 1, 112)
    without = Trace(cpu, always(0.0), always(0.25)).run(1300, lambda _: 1, 112)
    assert lane.n_drafted
    assert lane.ratio > 0.95 * without.ratio


def test_a_drafter_that_becomes_good_is_used_again():
    trace = Trace(gpu, always(0.0), always(0.5), drafter=(0.0, 0.5 * gpu(0.0, 1, 0, 0)))
    lane = trace.run(1000, lambda _: 1, 60)
    assert lane.n_drafted < 0.4 * lane.n_steps
    lane._drafter = (0.9, lane._drafter[1])
    before = lane.n_drafted
    trace.run(2000, lambda _: 1, 60)
    assert lane.n_drafted - before > 0.6 * 2000


@pytest.mark.parametrize("period", [40.0, 2.0, 0.2])
@pytest.mark.parametrize("swing", [0.05, 0.4])
@pytest.mark.parametrize("every", [0.0, 0.05, 0.3])
def test_costs_that_drift_are_followed_as_far_as_plain_steps_show_them(period, swing, every):
    """Slowly, within hundreds of steps, and faster than plain steps come."""

    def seconds(clock: float, n: int, n_nodes: int, n_read: int) -> float:
        return gpu(clock, n, n_nodes, n_read) * (1.0 + swing * math.sin(2 * math.pi * clock / period))

    lane = Trace(seconds, always(0.0), always(every), known=gpu).run(1200, lambda _: 8)
    assert lane.ratio > promised(lane)
    assert lane.ratio > 0.98 - (swing if period < 1.0 else 0.0)


def test_nodes_that_become_expensive_are_given_up():
    def seconds(clock: float, n: int, n_nodes: int, n_read: int) -> float:
        return gpu(clock, n, n_nodes * (1 if clock < 2.0 else 200), n_read)

    trace = Trace(seconds, always(0.4), always(0.4), known=gpu)
    first = trace.run(300, lambda _: 8).ratio
    assert first > 1.3
    trace.lane.plain = trace.lane.taken = trace.lane.overestimated = 0.0
    assert trace.run(1000, lambda _: 8).ratio > 0.98


@pytest.mark.parametrize("every", [0.0, 0.05])
def test_loads_that_jump_cost_no_more(every):
    sizes = (1, 16, 3, 40, 8, 1, 24)
    lane = Trace(gpu, always(0.02), always(every)).run(1400, lambda number: sizes[number // 50 % len(sizes)])
    assert lane.ratio > 0.98
    assert lane.ratio > promised(lane)


@pytest.mark.parametrize("seconds", [5e-4, 5e-3])
def test_one_expensive_stream_among_sixteen_is_charged_for_all(seconds):
    class Slow(Source):
        def propose(self, request, budget):
            self.clock.now += seconds * (request.request_id == 3)
            return super().propose(request, budget)

    trace = Trace(gpu, always(0.0), always(0.0))
    trace.sources[1].__class__ = Slow
    lane = trace.run(800, lambda _: 16, life=10**9)
    assert lane.ratio > 0.98
    assert lane.ratio > promised(lane)


def test_credit_of_a_good_time_is_not_spent_on_a_bad_one():
    is_good = [True]

    def accuracy(request: RequestView) -> float:
        return 0.7 if is_good[0] else 0.0

    trace = Trace(gpu, accuracy, accuracy)
    assert trace.run(500, lambda _: 16).ratio > 2.0
    is_good[0] = False
    trace.lane.plain = trace.lane.taken = trace.lane.overestimated = 0.0
    assert trace.run(500, lambda _: 16).ratio > 0.98


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.floats(0.0, 0.9), st.floats(0.0, 0.9), st.integers(1, 20)), min_size=1, max_size=5),
    st.sampled_from([gpu, cpu]),
    st.floats(0.05, 0.99),
    st.floats(0.0, 0.1),
)
def test_the_promise_holds_on_any_trace(parts, seconds, claim, noise):
    now = [parts[0]]
    trace = Trace(seconds, lambda _: now[0][0], lambda _: now[0][1], claim, noise)
    for part in parts:
        now[0] = part
        trace.run(60, lambda _: part[2], life=90)  # noqa: B023
    assert trace.lane.ratio > promised(trace.lane) - 2.0 * noise / math.sqrt(trace.lane.n_steps)
