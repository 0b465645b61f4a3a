"""Hashes that every random number comes from: of (seed, choice, position), and of a token id under such a key.

``engine.sampling.noise`` turns the integers into numbers, and repeats ``noise_bits`` in torch; ``engine.cuda.kernels``
repeats it in Triton. Drafters that know a request's seed use the keys too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from engine.compiled import compiled_in_place

NoiseKey = tuple[int, int, int]  # seed (64 bits), choice, position

U64 = (1 << 64) - 1
GOLDEN64 = 0x9E3779B97F4A7C15
GUMBEL_DOMAIN = 0x67756D62
UNIFORM_DOMAIN = 0x756E6966


def mix64(x: int) -> int:
    """Return one splitmix64 output for state ``x``: a permutation of the 64-bit integers."""
    x = (x + GOLDEN64) & U64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & U64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & U64
    return x ^ (x >> 31)


compiled_mix64: Any = compiled_in_place(mix64)  # of a uint64


@compiled_in_place
def noise_bits(key: Any, token: Any) -> Any:
    """Return 32 random bits of a token id under a position's key: both are uint64, the bits uint32.

    This is triple32 (Wellons 2018), a 32-bit permutation. One half of the key shifts its input, the other half flips
    its middle.
    """
    x = np.uint32(token * 0x9E3779B9 + key)
    x = np.uint32((x ^ (x >> 17)) * 0xED5AD4BB) ^ np.uint32(key >> 32)
    x = np.uint32((x ^ (x >> 11)) * 0xAC4C1B51)
    x = np.uint32((x ^ (x >> 15)) * 0x31848BAB)
    return x ^ (x >> 14)


@lru_cache(maxsize=4096)
def _request_key(seed: int, choice: int, domain: int) -> int:
    return mix64(mix64(mix64(seed & U64) ^ (choice & U64)) ^ domain)


def request_key(seed: int, choice: int) -> int:
    """Return the request's part of a Gumbel key, 64 bits; mixed with a position it gives that position's key."""
    return _request_key(seed, choice, GUMBEL_DOMAIN)


def position_key(key: NoiseKey, domain: int) -> int:
    """Return 64 well-mixed bits of a noise key."""
    seed, choice, position = key
    return mix64(_request_key(seed, choice, domain) ^ (position & U64))
