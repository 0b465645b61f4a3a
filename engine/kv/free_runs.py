"""Runs of free blocks, and where in them a new run of blocks begins. Knows no owners."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PLENTY = 0.5  # of the cache


def longest_run(free: NDArray[np.bool_]) -> int:
    """Blocks of the longest run; 0 when none is free."""
    starts, ends = _runs(free)
    return int((ends - starts).max(initial=0))


def start_of_run(free: NDArray[np.bool_], n_wanted: int) -> int:
    """First block of a new run of ``n_wanted`` blocks, at least 1 and no more than the longest run has.

    While half of the cache is free, it is the middle of the longest run, or so far before it that ``n_wanted`` blocks
    follow: the owner of the blocks before the run can then go on growing, too. With less it is the start of the
    shortest run that is long enough, so that long ones last: one that two share is soon too short for either.
    """
    starts, ends = _runs(free)
    lengths = ends - starts
    if lengths.sum() >= PLENTY * len(free):
        longest = int(np.argmax(lengths))
        start, end = int(starts[longest]), int(ends[longest])
        return start if start == 0 else max(start, min((start + end) // 2, end - n_wanted))
    return int(starts[_shortest(lengths, n_wanted)])


def amid_run(free: NDArray[np.bool_], n: int) -> int:
    """First block of the place in free blocks that all ``n`` of a sequence move to, at most the longest run's.

    It is the middle of the shortest run that is long enough, and that run's start only where the cache begins: right
    behind another sequence it would take away the block that this one needs next, and so scatter it in its turn.
    """
    starts, ends = _runs(free)
    shortest = _shortest(ends - starts, n)
    start, end = int(starts[shortest]), int(ends[shortest])
    return (start + end - n) // 2 if start else 0


def _shortest(lengths: NDArray[np.intp], n: int) -> int:
    """The shortest run of at least ``n`` blocks."""
    fitting = np.flatnonzero(lengths >= n)
    return int(fitting[np.argmin(lengths[fitting])])


def _runs(free: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """First block of every run, and the one behind its last."""
    edges = np.flatnonzero(np.diff(free, prepend=False, append=False))
    return edges[::2], edges[1::2]
