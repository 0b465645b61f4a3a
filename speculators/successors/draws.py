"""How likely the target is to draw each candidate, given how it draws. Compiled."""

from __future__ import annotations

from math import exp, log
from typing import Any, NamedTuple

import numpy as np

from engine.compiled.functions import compiled_in_place
from engine.compiled.keys import mix64
from speculators.successors.candidates import Candidates

OUTSIDE = 128.0  # tokens that share what the candidates leave ...
UNSEEN = 0.3  # ... and of which so much really goes to none of them (fitted at temperatures 0.6 to 1)
GREEDY = 1.0  # temperature that stands for the argmax of probabilities that are only estimated
_TRIPLE32 = (np.uint32(0xED5AD4BB), np.uint32(0xAC4C1B51), np.uint32(0x31848BAB))
_GOLDEN32 = np.uint32(0x9E3779B9)


class Sampling(NamedTuple):
    """How the target will draw; ``noise_key`` is 0 where its noise is not to be known."""

    temperature: float
    noise_key: Any  # uint64: of (seed, choice), before the position


@compiled_in_place
def exponential(key: Any, token: int) -> float:
    """``exp(-gumbel)`` of a token under a position's key: the same bits as ``engine.sampling.noise.gumbel``."""
    x = np.uint32(np.uint32(token) * _GOLDEN32) + np.uint32(key & np.uint64(0xFFFFFFFF))
    x = np.uint32(x)
    x = np.uint32((x ^ (x >> np.uint32(17))) * _TRIPLE32[0])
    x ^= np.uint32(key >> np.uint64(32))
    x = np.uint32((x ^ (x >> np.uint32(11))) * _TRIPLE32[1])
    x = np.uint32((x ^ (x >> np.uint32(15))) * _TRIPLE32[2])
    x ^= x >> np.uint32(14)
    return -log((x + 0.5) * 2.0**-32)


@compiled_in_place
def weigh_draws(candidates: Candidates, n: int, sampling: Sampling, position: int) -> None:
    """``candidates.p`` of ``n`` candidates becomes the probability that the target draws them at ``position``.

    Greedy: no token outside is likely to be the argmax, so candidates share most of what is left. Sampling: with the
    temperature, which sharpens candidates and what is outside alike. Where the target draws by coupled noise, the noise
    of every candidate is known: v is drawn if ``log p(v) + g(v)`` is largest. With p only estimated that is taken as
    likely as ``p(v) e^g(v)`` is against the others', times the chance that no token outside the candidates beats it.
    """
    if n == 0:
        return
    temperature = sampling.temperature if sampling.temperature > 0.0 else GREEDY
    sum_p = 0.0
    top = 0.0
    for i in range(n):
        sum_p += candidates.p[i]
        top = max(top, candidates.p[i])
    outside = max(1.0 - sum_p, 1e-3) / OUTSIDE  # of each token outside
    top = max(top, outside)  # what is largest becomes 1: nothing overflows, and not everything underflows
    inverse = 1.0 / temperature
    rest = UNSEEN * OUTSIDE * (outside / top) ** inverse
    total = rest
    for i in range(n):
        scaled = candidates.p[i] / top
        if inverse != 1.0:
            scaled **= inverse
        candidates.from_text[i] *= scaled / max(candidates.p[i], 1e-30)
        candidates.from_corpus[i] *= scaled / max(candidates.p[i], 1e-30)
        candidates.p[i] = scaled
        total += scaled
    rest /= total
    for i in range(n):
        candidates.p[i] /= total
        candidates.from_text[i] /= total
        candidates.from_corpus[i] /= total
    if sampling.noise_key == 0 or sampling.temperature == 0.0:
        return
    key = mix64(sampling.noise_key ^ np.uint64(position))
    total = 0.0
    for i in range(n):
        lifted = candidates.p[i] / exponential(key, candidates.ids[i])
        candidates.from_text[i] *= lifted / max(candidates.p[i], 1e-30)
        candidates.from_corpus[i] *= lifted / max(candidates.p[i], 1e-30)
        candidates.p[i] = lifted
        total += lifted
    if total == 0.0:
        return
    for i in range(n):
        factor = exp(-rest / max(candidates.p[i], 1e-30)) / total
        candidates.p[i] *= factor
        candidates.from_text[i] *= factor
        candidates.from_corpus[i] *= factor
