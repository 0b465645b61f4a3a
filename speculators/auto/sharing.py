"""Sharing the nodes of a step out: as many as give all requests together the most tokens per second."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.compiled.functions import compiled
from engine.step_cost import Seconds
from speculators.auto.prices import Price


def share_out(
    reaches: Sequence[Sequence[float]],
    heard: Sequence[bool],
    price: Price,
    drafting: float,
    margin: float,
) -> list[int]:
    """How many nodes each draft may keep.

    A step in which all sequences decode commits a token each, and as many more as path probabilities sum up
    to. It is worth comparing with a step without drafts, of which nothing is read back.

    Args:
        reaches: per draft the path probabilities of its nodes, not increasing.
        heard: per draft, whether the ids behind its root and its nodes are read back.
        price: of the step, for as many nodes as there are; its sequences are those without a draft, too.
        drafting: seconds that making the drafts takes.
        margin: so much more tokens per second a draft must promise than none.
    """
    sizes = np.array([len(reach) for reach in reaches], np.int64)
    n = int(sizes.sum())
    if n:
        p = np.fromiter((value for reach in reaches for value in reach), np.float64, n)
        _share_out(
            p,
            sizes,
            np.array(heard, np.bool_),
            price.wider,
            price.extra,
            price.reading,
            price.read_row,
            price.factor,
            price.batch,
            drafting,
            price.batch / price.now * (1.0 + margin),
        )
    counts: list[int] = sizes.tolist()
    return counts


@compiled
def _share_out(
    p: npt.NDArray[np.float64],
    sizes: npt.NDArray[np.int64],
    heard: npt.NDArray[np.bool_],
    wider: Seconds,
    extra: float,
    reading: float,
    read_row: float,
    factor: float,
    batch: int,
    drafting: float,
    least: float,
) -> None:
    """``sizes`` become the counts for which most tokens per second are expected; 0 where that is not over ``least``."""
    n_lists = len(sizes)
    ends = np.cumsum(sizes)
    places = ends - sizes  # of the best node of each list that was not taken
    n_read = heard.sum()
    read = reading if n_read else 0.0
    gain = 0.0
    best_rate = least
    counts = np.zeros(n_lists, np.int64)
    for n in range(1, len(p) + 1):
        best = -1
        for i in range(n_lists):
            if places[i] < ends[i] and (best < 0 or p[places[i]] > p[places[best]]):
                best = i
        gain += p[places[best]]
        places[best] += 1
        n_read += heard[best]
        rate = (batch + gain) / (factor * (wider[n] + extra + read + read_row * n_read) + drafting)
        if rate > best_rate:
            best_rate = rate
            counts = places - (ends - sizes)
    sizes[:] = counts
