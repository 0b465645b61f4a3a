"""Shares the nodes of a step out among its drafts, so that all streams together save the most time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.compiled import compiled
from engine.protocol import Branch
from speculators.auto.prices import Price
from speculators.auto.streams import CLASSES, class_of
from speculators.mixing.merged import DEFAULT_CLAIM

Floats = npt.NDArray[np.float64]
HEADER = 8  # numbers before the drafts, see ``share_out``


def share_out(
    drafts: Sequence[tuple[Branch, Sequence[float], bool]],
    n_read: int,
    price: Price,
    token: float,
    read: float,
    limit: float,
) -> list[int]:
    """Return how many first nodes each draft keeps.

    The nodes are those for which ``token`` * (expected acceptances + ``read`` * nodes that are read back) - (seconds
    that they add) is highest.

    Args:
        drafts: branch, best nodes first; hits per claimed hit by class, ``[CLASSES]``; whether its nodes are read back.
        n_read: rows that are read back without any node.
        price: of the step, for as many nodes as there are.
        token: seconds that one more token is worth.
        read: tokens that reading back one answer is worth.
        limit: most seconds of the step.
    """
    packed = [price.factor, price.slope, price.reading, price.read_row, token, limit, n_read, read]
    for branch, factors, is_read in drafts:
        n = len(branch.tokens)
        packed += (n, is_read, branch.parents is not None)
        packed += factors
        packed += branch.scores if branch.scores is not None and branch.q is None else [DEFAULT_CLAIM] * n
        packed += branch.parents or ()
    found = np.empty(len(drafts))
    _share_out(np.array(packed, np.float64), price.by_nodes, found)  # one array: each takes 10 us in cold caches
    return [int(count) for count in found.tolist()]


@compiled
def _share_out(packed: Floats, by_nodes: Floats, found: Floats) -> None:
    """Set ``found[i]`` to the count of draft i; ``packed`` is what ``share_out`` makes."""
    factor, slope, reading, read_row, token, limit, n_read, read = packed[:HEADER]
    n_lists = len(found)
    starts, ends = np.empty(n_lists, np.int64), np.empty(n_lists, np.int64)
    is_read = np.empty(n_lists, np.bool_)
    reach, p = np.empty(len(packed)), np.empty(len(packed))  # by node; more than enough
    at, end = HEADER, 0
    for i in range(n_lists):
        n, is_read[i], is_tree = int(packed[at]), packed[at + 1] > 0.0, packed[at + 2] > 0.0
        factors, claims = packed[at + 3 : at + 3 + CLASSES], packed[at + 3 + CLASSES : at + 3 + CLASSES + n]
        parents = packed[at + 3 + CLASSES + n : at + 3 + CLASSES + 2 * n]
        at += 3 + CLASSES + (2 * n if is_tree else n)
        starts[i], ends[i], least = end, end + n, 1.0
        for node in range(n):
            parent = int(parents[node]) if is_tree else node - 1
            claim = claims[node] if claims[node] < np.inf else 0.0  # 0 also if it is not a number
            above = 1.0 if parent < 0 else reach[starts[i] + parent]
            reach[end] = above * min(claim * factors[class_of(claim)], 1.0)
            least = min(least, reach[end])
            p[end] = least
            end += 1
    places = starts.copy()  # of the best node of each list that was not taken
    best_places = starts.copy()
    plain, slope = factor * by_nodes[0], factor * slope
    base = plain + slope * (reading + read_row * n_read if n_read else 0.0)
    gain, best_value, rows_read = 0.0, 0.0, n_read
    for n in range(1, end + 1):
        best = -1
        for i in range(n_lists):
            if places[i] < ends[i] and (best < 0 or p[places[i]] > p[places[best]]):
                best = i
        gain += p[places[best]] + read * is_read[best]
        places[best] += 1
        rows_read += is_read[best]
        seconds = plain + slope * (by_nodes[n] - by_nodes[0] + (reading + read_row * rows_read if rows_read else 0.0))
        if seconds > limit:
            break
        if gain * token - (seconds - base) > best_value:
            best_value = gain * token - (seconds - base)
            best_places[:] = places
    for i in range(n_lists):
        found[i] = best_places[i] - starts[i]
