"""How much faster, and how sure that is: ratios of sums over paired runs, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
RESAMPLES = 1000
SURE = 0.95  # of an interval


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio and the interval that holds it with probability ``SURE``."""

    ratio: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Of the interval, relative to the ratio."""
        return (self.high - self.low) / 2 / self.ratio

    @classmethod
    def of(cls, ratio: float, logs: Floats) -> Interval:
        """From the logarithms ``[n]`` of resampled ratios."""
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
    """``sum(others) / sum(ours)``: above 1, ours are faster.

    Args:
        others: turn by turn the seconds of each stream, ``[turns][streams]``.
        ours: of the same prompts and seeds.

    Turns are drawn with replacement, and in each drawn turn its streams: what a busy machine does to a whole turn
    widens the interval as well as what tells one prompt from another. A single turn has its streams alone; a single
    stream of a single turn has nothing to draw from, and its interval of one point means nothing.
    """
    above, below = (np.asarray(seconds, np.float64) for seconds in (others, ours))
    assert above.shape == below.shape
    chance = np.random.default_rng(0)
    n_turns, n_streams = above.shape
    turns = chance.integers(n_turns, size=(RESAMPLES, n_turns))[:, :, None]
    streams = chance.integers(n_streams, size=(RESAMPLES, n_turns, n_streams))
    logs = np.log(above[turns, streams].sum((1, 2))) - np.log(below[turns, streams].sum((1, 2)))
    return Comparison(float(above.sum() / below.sum()), logs)


def compare_with_best(
    fixed: Mapping[str, Sequence[Sequence[float]]], ours: Sequence[Sequence[float]]
) -> tuple[list[str], Comparison]:
    """Our seconds against those of the best of several, which is chosen on one half and compared on the other.

    Chosen and compared on the same runs, the best of several methods is partly the luckiest. Both halves have their
    turn: what was best in one is compared in the other. Halves are turns, or streams where there is one turn.

    Returns:
        the method that was best in each half, and the comparison.
    """
    n_turns, n_streams = len(ours), len(ours[0])
    table = {name: np.asarray(seconds, np.float64) for name, seconds in fixed.items()}
    by_turn = n_turns > 1
    parity = np.arange(n_turns if by_turn else n_streams) % 2
    best: list[str] = []
    against = np.empty((n_turns, n_streams))
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
    """The geometric mean over independent comparisons, each of which counts the same."""
    ratio = float(np.exp(np.mean([np.log(one.ratio) for one in comparisons])))
    chance = np.random.default_rng(0)  # the same draws in each would make independent comparisons err together
    return Interval.of(ratio, np.mean([chance.permutation(one.logs) for one in comparisons], axis=0))
