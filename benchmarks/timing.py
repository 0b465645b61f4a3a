"""Fair timing of two callables: interleaved runs, medians, so that a drifting machine hits both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def interleaved(
    first: Callable[[], object], second: Callable[[], object], runs: int, warmup: int
) -> tuple[float, float]:
    """Median seconds of each."""
    for _ in range(warmup):
        first()
        second()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(runs):
        for call, kept in zip((first, second), times, strict=True):
            began = time.perf_counter()
            call()
            kept.append(time.perf_counter() - began)
    return statistics.median(times[0]), statistics.median(times[1])
