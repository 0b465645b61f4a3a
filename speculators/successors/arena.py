"""Memory for many arrays that are read together.

Lookups in a table touch lines all over it. With pages of 4 KiB nearly all of them miss the TLB, too, and the first
write to each page of new memory takes 3 us. NumPy asks the kernel for huge pages if an array has at least
4 MiB. Therefore all tables of a model share one array.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

ARENA_LINE = 64  # bytes of a line of the cache: rows of 64 bytes lie in one


class Arena:
    """Hands out arrays, one after another, from one piece of memory of ``n_bytes``.

    Raises:
        ValueError: there is no room for an array.
    """

    def __init__(self, n_bytes: int) -> None:
        memory = np.empty(n_bytes + ARENA_LINE, np.uint8)
        first = -memory.__array_interface__["data"][0] % ARENA_LINE
        self._memory = memory[first : first + n_bytes]
        self._used = 0

    def take(self, shape: tuple[int, ...], kind: Any) -> npt.NDArray[Any]:
        """Return an array with arbitrary values."""
        n = math.prod(shape) * np.dtype(kind).itemsize
        array: npt.NDArray[Any] = self._memory[self._used : self._used + n].view(kind).reshape(shape)
        self._used += -(-n // ARENA_LINE) * ARENA_LINE
        return array
