"""Sharing the nodes of a step out: as many as give all requests together the most tokens per second."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
    sizes = [len(reach) for reach in reaches]
    n = sum(sizes)
    if not n:
        return sizes
    p = np.fromiter((value for reach in reaches for value in reach), np.float64, n)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    order = np.argsort(-p, kind="stable")
    seconds = price.wider[1 : n + 1] + price.extra
    if any(heard):
        nodes = np.cumsum(np.asarray(heard, np.float64)[owners[order]])
        seconds += price.reading + price.read_row * (sum(heard) + nodes)
    rate = (price.batch + np.cumsum(p[order])) / (price.factor * seconds + drafting)
    best = int(rate.argmax())
    if rate[best] <= price.batch / price.now * (1.0 + margin):
        return [0] * len(sizes)
    counts: list[int] = np.bincount(owners[order[: best + 1]], minlength=len(sizes)).tolist()
    return counts
