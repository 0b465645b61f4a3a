"""Pauses between the events of streams, as pairs of (when, how long), and their figures in a phase.

Knows nothing of servers and steps, and does not judge whether a pause is long.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from benchmarks.retrieval_chaos.answers import Answer
from benchmarks.retrieval_chaos.clients import BEAT_S
from benchmarks.retrieval_chaos.phases import Phase

Pairs: TypeAlias = Sequence[tuple[float, float]]  # (monotonic seconds, seconds), by time


def pauses(answers: Sequence[Answer], namespace: str | None = None) -> list[tuple[float, float]]:
    """(when it ended, seconds) of every pause between two events of a stream, by time."""
    chosen = [answer.events for answer in answers if namespace is None or answer.namespace == namespace]
    return sorted((b, b - a) for events in chosen for a, b in pairwise(events))


def net_of(gaps: Pairs, beats: Pairs) -> list[tuple[float, float]]:
    """The same pauses less the most that the timer was late within each."""
    return [(at, gap - max(_between(beats, at - gap, at + BEAT_S), default=0.0)) for at, gap in gaps]


def _between(pairs: Pairs, begin: float, end: float) -> list[float]:
    first = bisect.bisect_left(pairs, (begin, -1.0))
    return [value for _, value in pairs[first : bisect.bisect_left(pairs, (end, -1.0))]]


def within(pairs: Pairs, phase: Phase) -> list[float]:
    """Seconds of the pairs that fall into ``phase``."""
    return _between(pairs, phase.began, phase.ended)


def pause_figures(phase: Phase, gaps: Pairs, net: Pairs) -> dict[str, Any]:
    """Pauses that ended in ``phase``, in ms, and when the longest ended, in seconds after the move."""
    own = within(gaps, phase) or [float("nan")]
    longest_at = max((pair for pair in gaps if phase.began <= pair[0] < phase.ended), key=itemgetter(1), default=None)
    return {
        "pause_median": round(1000 * statistics.median(own), 1),
        "pause_p99": round(1000 * float(np.percentile(own, 99)), 1),
        "pause_longest": round(1000 * max(own), 1),
        "pause_longest_net": round(1000 * max(within(net, phase), default=0.0), 1),
        "longest_at_seconds": None if longest_at is None else round(longest_at[0] - phase.moved, 2),
    }
