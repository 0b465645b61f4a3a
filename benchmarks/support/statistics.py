"""Ratios of sums over paired runs, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
RESAMPLES = 1000
SURE = 0.95  # probability that an interval holds its ratio


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio and the interval that holds it with probability ``SURE``."""

    ratio: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the interval's width, relative to the ratio."""
        return (self.high - self.low) / 2 / self.ratio

    @classmethod
    def of(cls, ratio: float, logs: Floats) -> Interval:
        """Return the interval of a ratio from the logarithms ``[n]`` of resampled ratios."""
        low, high = np.exp(np.quantile(logs, [(1 - SURE) / 2, (1 + SURE) / 2]))
        return cls(ratio, float(low), float(high))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Seconds of one method over those of another, for the same texts."""

    ratio: float
    logs: Floats  # [RESAMPLES], of the resampled ratios

    @property
    def interval(self) -> Interval:
        """Of the ratio."""
        return Interval.of(self.ratio, self.logs)


def compare(others: Sequence[Sequence[float]], ours: Sequence[Sequence[float]]) -> Comparison:
    """Return ``sum(others) / sum(ours)``: above 1, ours are faster.

    Args:
        others: seconds of each text of every turn, ``[turns][texts]``.
        ours: seconds of the same prompts and seeds.

    Turns are drawn with replacement, and in each drawn turn its texts. So noise that affects a whole turn widens the
    interval, as well as the differences between prompts. The interval of a single text means nothing.
    """
    above, below = (np.asarray(seconds, np.float64) for seconds in (others, ours))
    assert above.shape == below.shape
    chance = np.random.default_rng(0)
    n_turns, n_texts = above.shape
    turns = chance.integers(n_turns, size=(RESAMPLES, n_turns))[:, :, None]
    texts = chance.integers(n_texts, size=(RESAMPLES, n_turns, n_texts))
    logs = np.log(above[turns, texts].sum((1, 2))) - np.log(below[turns, texts].sum((1, 2)))
    return Comparison(float(above.sum() / below.sum()), logs)


def compare_with_best(
    fixed: Mapping[str, Sequence[Sequence[float]]], ours: Sequence[Sequence[float]]
) -> tuple[list[str], Comparison]:
    """Compare our seconds with those of the best of several methods, which is chosen on one half of the runs.

    If it were chosen on the runs that are compared, the best method would partly be the luckiest. So the best method of
    each half is compared on the other half. Halves are turns, or texts if there is only one turn.

    Returns:
        the best method of each half, and the comparison.
    """
    n_turns, n_texts = len(ours), len(ours[0])
    table = {name: np.asarray(seconds, np.float64) for name, seconds in fixed.items()}
    by_turn = n_turns > 1
    parity = np.arange(n_turns if by_turn else n_texts) % 2
    best: list[str] = []
    against = np.empty((n_turns, n_texts))
    for half in (0, 1):
        chosen_on = parity == half if (parity == half).any() else parity != half
        means = {name: (all_s[chosen_on] if by_turn else all_s[:, chosen_on]).sum() for name, all_s in table.items()}
        best.append(min(means, key=lambda name: means[name]))
        if by_turn:
            against[parity != half] = table[best[-1]][parity != half]
        else:
            against[:, parity != half] = table[best[-1]][:, parity != half]
    return best, compare(against.tolist(), ours)


def pooled(comparisons: Sequence[Comparison]) -> Interval:
    """Return the geometric mean of independent comparisons, which all have the same weight."""
    ratio = float(np.exp(np.mean([np.log(one.ratio) for one in comparisons])))
    chance = np.random.default_rng(0)  # the same draws in each would make independent comparisons err together
    return Interval.of(ratio, np.mean([chance.permutation(one.logs) for one in comparisons], axis=0))
