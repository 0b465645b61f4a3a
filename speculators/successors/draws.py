"""Compiled estimate of how likely the target is to draw each candidate."""

from __future__ import annotations

from math import exp, log
from typing import Any, NamedTuple

import numpy as np

from engine.compiled import compiled_in_place
from engine.sampling.keys import compiled_mix64, noise_bits
from speculators.successors.candidates import SuccessorCandidates

OUTSIDE = 128.0  # tokens that share the probability that the candidates leave ...
UNSEEN = 0.3  # ... and the part of it that really goes to none of them (fitted at temperatures 0.6 to 1)
GREEDY = 1.0  # temperature that estimates how likely a candidate is the argmax, if probabilities are estimates


class Sampling(NamedTuple):
    """How the target draws; ``noise_key`` is 0 if its noise is unknown."""

    temperature: float
    noise_key: Any  # uint64: of (seed, choice), before the position


@compiled_in_place
def exponential(key: Any, token: int) -> float:
    """Return ``exp(-gumbel)`` of a token under a position's key: the same bits as ``engine.sampling.noise.gumbel``."""
    return -log((noise_bits(key, np.uint64(token)) + 0.5) * 2.0**-32)


@compiled_in_place
def weigh_draws(candidates: SuccessorCandidates, sampling: Sampling, position: int) -> None:
    """Set ``candidates.p`` to the probability that the target draws each candidate at ``position``.

    Greedy: a token outside is unlikely to be the argmax, so candidates share most of the remaining probability.
    Sampling: the temperature sharpens candidates and tokens outside alike. If the target draws with coupled noise, the
    noise g of each candidate is known: v is drawn if ``log p(v) + g(v)`` is largest. As p is an estimate, v counts with
    ``p(v) e^g(v)`` among the candidates, times the probability that no token outside beats it.
    """
    n, p = candidates.n[0], candidates.p
    if n == 0:
        return
    temperature = sampling.temperature if sampling.temperature > 0.0 else GREEDY
    sum_p = 0.0
    top = 0.0
    for i in range(n):
        sum_p += p[i]
        top = max(top, p[i])
    outside = max(1.0 - sum_p, 1e-3) / OUTSIDE  # of each token outside
    top = max(top, outside)  # the largest becomes 1: nothing overflows, and not everything underflows
    inverse = 1.0 / temperature
    rest = UNSEEN * OUTSIDE * (outside / top) ** inverse
    total = rest
    for i in range(n):
        scaled = p[i] / top
        if inverse != 1.0:
            scaled **= inverse
        p[i] = scaled
        total += scaled
    rest /= total
    for i in range(n):
        p[i] /= total
    if sampling.noise_key == 0 or sampling.temperature == 0.0:
        return
    key = compiled_mix64(sampling.noise_key ^ np.uint64(position))
    total = 0.0
    for i in range(n):
        lifted = p[i] / exponential(key, candidates.ids[i])
        p[i] = lifted
        total += lifted
    if total == 0.0:
        return
    for i in range(n):
        p[i] *= exp(-rest / max(p[i], 1e-30)) / total
