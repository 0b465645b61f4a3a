"""Keys of random numbers for compiled code: ``engine.sampling.keys`` on uint64."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.compiled.functions import compiled_in_place

_GOLDEN64 = np.uint64(0x9E3779B97F4A7C15)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@compiled_in_place
def mix64(x: Any) -> Any:
    """Return ``engine.sampling.keys.mix64`` of a uint64."""
    x = x + _GOLDEN64
    x = (x ^ (x >> np.uint64(30))) * _MIX1
    x = (x ^ (x >> np.uint64(27))) * _MIX2
    return x ^ (x >> np.uint64(31))
