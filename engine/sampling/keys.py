"""Keys of counter-based randomness: 64 well-mixed bits out of (seed, choice, position). Integers only, no torch.

``engine.sampling.noise`` turns them into numbers, and says how. Drafters that know a request's seed use the keys too.
"""

from __future__ import annotations

from functools import lru_cache

NoiseKey = tuple[int, int, int]  # seed (64 bit), choice, position

U64 = (1 << 64) - 1
GOLDEN64 = 0x9E3779B97F4A7C15
GUMBEL_DOMAIN = 0x67756D62
UNIFORM_DOMAIN = 0x756E6966


def mix64(x: int) -> int:
    """One splitmix64 output for state ``x``: a permutation of the 64-bit integers."""
    x = (x + GOLDEN64) & U64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & U64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & U64
    return x ^ (x >> 31)


@lru_cache(maxsize=4096)
def _request_key(seed: int, choice: int, domain: int) -> int:
    return mix64(mix64(mix64(seed & U64) ^ (choice & U64)) ^ domain)


def request_key(seed: int, choice: int) -> int:
    """The part of a Gumbel key that is one request's: 64 bits; mixed with a position it gives that position's key."""
    return _request_key(seed, choice, GUMBEL_DOMAIN)


def position_key(key: NoiseKey, domain: int) -> int:
    """64 well-mixed bits of a noise key."""
    seed, choice, position = key
    return mix64(_request_key(seed, choice, domain) ^ (position & U64))
