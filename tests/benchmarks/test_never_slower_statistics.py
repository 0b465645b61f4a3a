"""Ratios and intervals of the stand for "is it ever slower?"."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.never_slower.statistics import compare, compare_with_best, pooled


def test_a_ratio_is_of_sums_and_without_noise_its_interval_is_a_point() -> None:
    ours = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    found = compare([[1.5 * s for s in turn] for turn in ours], ours)
    assert found.ratio == pytest.approx(1.5)
    assert found.interval.low == pytest.approx(1.5) == found.interval.high
    uneven = compare([[3.0, 1.0]], [[1.0, 1.0]])
    assert uneven.ratio == 2.0
    assert uneven.interval.low < 1.2
    assert uneven.interval.high > 2.8


def test_intervals_hold_the_true_ratio_as_often_as_they_say() -> None:
    chance = np.random.default_rng(5)
    held = 0
    for _ in range(100):
        work = chance.gamma(4.0, 1.0, (12, 8))  # what prompts cost
        busy = chance.lognormal(0.0, 0.05, (12, 1))  # what the machine does to a method's turn
        others = 1.1 * work * chance.lognormal(0.0, 0.1, work.shape) * busy
        interval = compare(others.tolist(), work.tolist()).interval
        held += interval.low <= 1.1 * np.exp(0.5 * (0.1**2 + 0.05**2)) <= interval.high
    assert held >= 88


def test_noise_of_whole_turns_widens_the_interval() -> None:
    chance = np.random.default_rng(1)
    work = np.ones((8, 64))
    alone = compare((work * chance.lognormal(0, 0.1, work.shape)).tolist(), work.tolist()).interval
    shared = compare((work * chance.lognormal(0, 0.1, (8, 1))).tolist(), work.tolist()).interval
    assert shared.half_width > 3 * alone.half_width


def test_of_equal_methods_the_luckiest_is_not_called_better() -> None:
    chance = np.random.default_rng(2)
    ratios, naive = [], []
    for _ in range(60):
        fixed = {str(i): chance.lognormal(0, 0.1, (8, 1)) for i in range(6)}
        ours = chance.lognormal(0, 0.1, (8, 1))
        _, found = compare_with_best({name: s.tolist() for name, s in fixed.items()}, ours.tolist())
        ratios.append(found.ratio)
        naive.append(min(s.sum() for s in fixed.values()) / ours.sum())
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.02)
    assert np.mean(naive) < 0.97


def test_the_best_fixed_method_is_chosen_on_the_other_half() -> None:
    fixed = {"even": [[1.0], [9.0], [1.0], [9.0]], "odd": [[9.0], [1.0], [9.0], [1.0]]}
    best, found = compare_with_best(fixed, [[1.0]] * 4)
    assert best == ["even", "odd"]
    assert found.ratio == 9.0  # each was best by luck
    best, found = compare_with_best({"a": [[1.0, 2.0, 1.0, 2.0]], "b": [[3.0] * 4]}, [[1.0] * 4])  # halves of streams
    assert best == ["a", "a"]
    assert found.ratio == 1.5


def test_pooling_is_the_geometric_mean_and_narrows() -> None:
    chance = np.random.default_rng(3)
    comparisons = [
        compare((ratio * chance.lognormal(0, 0.1, (8, 4))).tolist(), np.ones((8, 4)).tolist()) for ratio in (0.5, 2.0)
    ]
    found = pooled(comparisons)
    assert found.ratio == pytest.approx(1.0, rel=0.05)
    assert found.half_width < comparisons[0].interval.half_width
