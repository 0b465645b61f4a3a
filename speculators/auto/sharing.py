"""Shares the nodes of a step out among its drafts, so that all streams together save the most time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.compiled import compiled
from engine.protocol import Branch
from speculators.auto.prices import Price
from speculators.auto.streams import DEPTHS

Floats = npt.NDArray[np.float64]
HEADER = 7  # numbers before the drafts, see ``share_out``


def share_out(
    drafts: Sequence[tuple[Branch, Sequence[float], bool]], n_read: int, price: Price, token: float, limit: float
) -> tuple[list[int], list[list[float]]]:
    """Return how many first nodes each draft keeps, and the acceptances that these claim, by depth.

    The nodes are those for which ``token`` * (expected acceptances) - (seconds that they add) is highest.

    Args:
        drafts: branch with ``reach``; hits per claimed hit by depth, ``[DEPTHS]``; whether its nodes are read back.
        n_read: rows that are read back without any node.
        price: of the step, for as many nodes as there are.
        token: seconds that one more token is worth.
        limit: most seconds of the step.
    """
    packed = [price.factor, price.extra, price.reading, price.read_row, token, limit, n_read]
    for branch, factors, is_read in drafts:
        packed += (len(branch.tokens), is_read, branch.parents is not None)
        packed += factors
        packed += branch.reach or ()
        packed += branch.parents or ()
    found = np.empty((len(drafts), 1 + DEPTHS))
    _share_out(np.array(packed, np.float64), price.by_nodes, found)  # one array: each takes 10 us in cold caches
    rows: list[list[float]] = found.tolist()
    return [int(row[0]) for row in rows], [row[1:] for row in rows]


@compiled
def _share_out(packed: Floats, by_nodes: Floats, found: Floats) -> None:
    """Set ``found[i]`` to the count of draft i and what its nodes claim; ``packed`` is what ``share_out`` makes."""
    factor, extra, reading, read_row, token, limit, n_read = packed[:HEADER]
    n_lists = len(found)
    starts, ends = np.empty(n_lists, np.int64), np.empty(n_lists, np.int64)
    is_read = np.empty(n_lists, np.bool_)
    depths, claims = np.zeros(len(packed), np.int64), np.empty(len(packed))  # by node; more than enough
    p = np.empty(len(packed))
    at, end = HEADER, 0
    for i in range(n_lists):
        n, is_read[i], is_tree = int(packed[at]), packed[at + 1] > 0.0, packed[at + 2] > 0.0
        factors, reach = packed[at + 3 : at + 3 + DEPTHS], packed[at + 3 + DEPTHS : at + 3 + DEPTHS + n]
        parents = packed[at + 3 + DEPTHS + n : at + 3 + DEPTHS + 2 * n]
        at += 3 + DEPTHS + (2 * n if is_tree else n)
        starts[i], end = end, end + n
        ends[i] = end
        least = 1.0
        for node in range(n):
            parent = int(parents[node]) if is_tree else node - 1
            depth = 0 if parent < 0 else depths[starts[i] + parent] + 1
            claim = reach[node] * factors[min(depth, DEPTHS - 1)]
            least = min(least, claim) if claim < np.inf else 0.0  # 0 also if the claim is not a number
            depths[starts[i] + node], p[starts[i] + node] = depth, least
            claims[starts[i] + node] = reach[node] if reach[node] < np.inf else 0.0
    places = starts.copy()  # of the best node of each list that was not taken
    best_places = starts.copy()
    base = factor * (by_nodes[0] + (extra + reading + read_row * n_read if n_read else 0.0))
    gain, best_value, rows_read = 0.0, 0.0, n_read
    for n in range(1, end + 1):
        best = -1
        for i in range(n_lists):
            if places[i] < ends[i] and (best < 0 or p[places[i]] > p[places[best]]):
                best = i
        gain += p[places[best]]
        places[best] += 1
        rows_read += is_read[best]
        seconds = factor * (by_nodes[n] + extra + (reading + read_row * rows_read if rows_read else 0.0))
        if seconds > limit:
            break
        if gain * token - (seconds - base) > best_value:
            best_value = gain * token - (seconds - base)
            best_places[:] = places
    found[:] = 0.0
    for i in range(n_lists):
        found[i, 0] = best_places[i] - starts[i]
        for place in range(starts[i], best_places[i]):
            found[i, 1 + min(depths[place], DEPTHS - 1)] += claims[place]
