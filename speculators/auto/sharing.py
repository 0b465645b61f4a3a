"""Distributes the nodes of a step over its drafts, for the most tokens per second of all requests together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.compiled import compiled
from engine.step_cost import Seconds
from speculators.auto.prices import Price


def share_out(
    reaches: Sequence[Sequence[float]], reads_back: Sequence[bool], price: Price, drafting: float, margin: float
) -> list[int]:
    """Return how many nodes each draft may keep.

    A step in which all sequences decode commits one token each, plus the sum of the path probabilities. It is compared
    with a step without drafts and read-backs.

    Args:
        reaches: per draft the path probabilities of its nodes, not increasing.
        reads_back: per draft, whether the ids after its root and its nodes are read back.
        price: of the step, for as many nodes as there are; its sequences include those without a draft.
        drafting: seconds that making the drafts takes.
        margin: share of tokens per second that a draft must add.
    """
    sizes = np.array([len(reach) for reach in reaches], np.int64)
    n = int(sizes.sum())
    if n:
        p = np.fromiter((value for reach in reaches for value in reach), np.float64, n)
        costs = price.factor, price.extra, price.reading, price.read_row, drafting
        least = price.batch / price.now * (1.0 + margin)
        _share_out(p, sizes, np.array(reads_back, np.bool_), price.by_nodes, costs, price.batch, least)
    counts: list[int] = sizes.tolist()
    return counts


@compiled
def _share_out(
    p: npt.NDArray[np.float64],
    sizes: npt.NDArray[np.int64],
    reads_back: npt.NDArray[np.bool_],
    by_nodes: Seconds,
    costs: tuple[float, float, float, float, float],
    batch: int,
    least: float,
) -> None:
    """Set ``sizes`` to the counts with the most expected tokens per second; to 0 if that is not above ``least``."""
    factor, extra, reading, read_row, drafting = costs
    n_lists = len(sizes)
    ends = np.cumsum(sizes)
    places = ends - sizes  # of the best node of each list that was not taken
    n_read = reads_back.sum()
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
        n_read += reads_back[best]
        rate = (batch + gain) / (factor * (by_nodes[n] + extra + read + read_row * n_read) + drafting)
        if rate > best_rate:
            best_rate = rate
            counts = places - (ends - sizes)
    sizes[:] = counts
