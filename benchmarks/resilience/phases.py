"""Phases of a run, and the pauses of streams within them, as pairs of (when a pause ended, seconds)."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

PERCEPTIBLE_S = 0.5  # pauses longer than this count for the time to recovery
Pairs: TypeAlias = Sequence[tuple[float, float]]  # (monotonic seconds, seconds), by time


@dataclass
class Phase:
    """A time in which one thing was done; all moments in monotonic seconds.

    Args:
        name: of what was done.
        began: when the phase began.
        acted: when the fault was injected, or the change took effect.
        ended: when the phase ended.
        wrong: what was not as it must be.
    """

    name: str
    began: float
    acted: float = 0.0
    ended: float = 0.0
    wrong: list[str] = field(default_factory=list)


def pauses(streams: Iterable[Sequence[float]]) -> list[tuple[float, float]]:
    """Pauses between neighbouring moments of each stream, over all streams."""
    return sorted((after, after - before) for moments in streams for before, after in pairwise(moments))


def longest_and_recovery(phase: Phase, gaps: Pairs) -> tuple[float, float]:
    """(longest pause that overlaps with what followed the fault, seconds from the fault to the end of the last pause
    above ``PERCEPTIBLE_S``): the second is the time to recovery."""
    seen = [(at, gap) for at, gap in gaps if at >= phase.acted and at - gap <= phase.ended]
    longest = max((gap for _, gap in seen), default=0.0)
    return longest, max((at - phase.acted for at, gap in seen if gap > PERCEPTIBLE_S), default=0.0)


def net_of(gaps: Pairs, lateness: Pairs, period: float) -> list[tuple[float, float]]:
    """The same pauses less the longest lateness of a timer with this ``period`` within each."""
    return [(at, gap - max(_between(lateness, at - gap, at + period), default=0.0)) for at, gap in gaps]


def within(pairs: Pairs, phase: Phase) -> list[float]:
    """Seconds of the pairs that fall into the phase."""
    return _between(pairs, phase.began, phase.ended)


def _between(pairs: Pairs, begin: float, end: float) -> list[float]:
    first = bisect.bisect_left(pairs, (begin, -1.0))
    return [value for _, value in pairs[first : bisect.bisect_left(pairs, (end, -1.0))]]


def pause_figures(phase: Phase, gaps: Pairs, net: Pairs) -> dict[str, Any]:
    """Pauses that ended in the phase, in ms, and when the longest ended, in seconds after the change."""
    own = within(gaps, phase) or [float("nan")]
    longest = max((pair for pair in gaps if phase.began <= pair[0] < phase.ended), key=itemgetter(1), default=None)
    return {
        "pause_median": round(1000 * statistics.median(own), 1),
        "pause_p99": round(1000 * float(np.percentile(own, 99)), 1),
        "pause_longest": round(1000 * max(own), 1),
        "pause_longest_net": round(1000 * max(within(net, phase), default=0.0), 1),
        "longest_at_seconds": None if longest is None else round(longest[0] - phase.acted, 2),
    }
