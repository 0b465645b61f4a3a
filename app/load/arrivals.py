"""When requests of an open loop arrive, in seconds after its start; no clock."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

POISSON, FIXED = "poisson", "fixed"


def arrivals(
    rate: float, kind: str, seed: int, requests: int | None = None, duration: float | None = None
) -> Iterator[float]:
    """Times of arrivals, ascending, from 0 on.

    Args:
        rate: requests per second.
        kind: ``POISSON``: independent of each other, exponential gaps; ``FIXED``: evenly spaced.
        seed: of the gaps; the same seed, the same times.
        requests: at most so many.
        duration: only those before, in seconds.
    """
    times = _poisson(rate, seed) if kind == POISSON else (i / rate for i in itertools.count())
    if duration is not None:
        times = itertools.takewhile(lambda at: at < duration, times)
    return itertools.islice(times, requests)


def _poisson(rate: float, seed: int) -> Iterator[float]:
    noise, now = random.Random(seed), 0.0
    while True:
        now += noise.expovariate(rate)
        yield now
