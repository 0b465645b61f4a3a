"""Fair timing of two callables: interleaved runs, medians, so that a drifting machine hits both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def interleaved(
    first: Callable[[], object],
    second: Callable[[], object],
    runs: int,
    warmup: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float]:
    """Median seconds of each.

    Args:
        first: called alternately with ``second``.
        second: the other.
        runs: measured calls of each.
        warmup: calls of each before that.
        clock: ``time.thread_time`` leaves out what other processes take of the core.
    """
    for _ in range(warmup):
        first()
        second()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(runs):
        for call, kept in zip((first, second), times, strict=True):
            began = clock()
            call()
            kept.append(clock() - began)
    return statistics.median(times[0]), statistics.median(times[1])
