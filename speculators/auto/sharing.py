"""Shares the nodes of a step out among its drafts, so that all streams together save the most time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.compiled import compiled
from engine.protocol import Branch
from engine.step_cost import Seconds
from speculators.auto.prices import Price
from speculators.auto.streams import DEPTHS

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def share_out(
    drafts: Sequence[Branch],
    factors: Sequence[Sequence[float]],
    reads_back: Sequence[bool],
    n_read: int,
    price: Price,
    token: float,
    limit: float,
) -> tuple[list[int], list[list[float]]]:
    """Return how many first nodes each draft keeps, and the acceptances that these claim, by depth.

    The nodes are those for which ``token`` * (expected acceptances) - (seconds that they add) is highest.

    Args:
        drafts: with ``reach``.
        factors: per draft, ``[DEPTHS]``: hits per claimed hit.
        reads_back: per draft, whether the ids after its nodes are read back.
        n_read: rows that are read back without any node.
        price: of the step, for as many nodes as there are.
        token: seconds that one more token is worth.
        limit: most seconds of the step.
    """
    sizes = np.array([len(draft.tokens) for draft in drafts], np.int64)
    reach = np.array([p for draft in drafts for p in draft.reach or ()], np.float64)
    parents = np.array([parent for draft in drafts for parent in draft.above], np.int64)
    claimed = np.zeros((len(drafts), DEPTHS))
    costs = price.factor, price.extra, price.reading, price.read_row, token, limit
    reads = np.array(reads_back, np.bool_)
    _share_out(reach, parents, sizes, np.array(factors, np.float64), reads, n_read, price.by_nodes, costs, claimed)
    counts: list[int] = sizes.tolist()
    return counts, claimed.tolist()


@compiled
def _share_out(
    reach: Floats,
    parents: Integers,
    sizes: Integers,
    factors: Floats,
    reads_back: npt.NDArray[np.bool_],
    n_read: int,
    by_nodes: Seconds,
    costs: tuple[float, float, float, float, float, float],
    claimed: Floats,
) -> None:
    """Set ``sizes`` to the counts that save the most time, and ``claimed`` to what these nodes claim."""
    factor, extra, reading, read_row, token, limit = costs
    n_lists = len(sizes)
    ends = np.cumsum(sizes)
    starts = ends - sizes
    depths = np.zeros(len(reach), np.int64)
    p = np.empty(len(reach), np.float64)
    for i in range(n_lists):
        least = 1.0
        for place in range(starts[i], ends[i]):
            if parents[place] >= 0:
                depths[place] = depths[starts[i] + parents[place]] + 1
            claim = reach[place] * factors[i, min(depths[place], DEPTHS - 1)]
            least = min(least, claim) if claim < np.inf else 0.0  # 0 also if the claim is not a number
            p[place] = least
    places = starts.copy()  # of the best node of each list that was not taken
    base = factor * (by_nodes[0] + (extra + reading + read_row * n_read if n_read else 0.0))
    gain, best_value, rows_read = 0.0, 0.0, n_read
    counts = np.zeros(n_lists, np.int64)
    for n in range(1, len(p) + 1):
        best = -1
        for i in range(n_lists):
            if places[i] < ends[i] and (best < 0 or p[places[i]] > p[places[best]]):
                best = i
        gain += p[places[best]]
        places[best] += 1
        rows_read += reads_back[best]
        seconds = factor * (by_nodes[n] + extra + (reading + read_row * rows_read if rows_read else 0.0))
        if seconds > limit:
            break
        if gain * token - (seconds - base) > best_value:
            best_value = gain * token - (seconds - base)
            counts = places - starts
    for i in range(n_lists):
        for place in range(starts[i], starts[i] + counts[i]):
            if reach[place] < np.inf:
                claimed[i, min(depths[place], DEPTHS - 1)] += reach[place]
    sizes[:] = counts
