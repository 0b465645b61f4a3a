"""Empties the processor's caches, as the other work of a host does between two steps."""

from __future__ import annotations

import numpy as np


class CacheEviction:
    """Reads a buffer from end to end.

    Args:
        megabytes: size of the buffer; 0: nothing is evicted.
    """

    def __init__(self, megabytes: int) -> None:
        self._buffer = np.ones(megabytes << 17, np.int64)

    def evict(self) -> None:
        """Replace the contents of the caches."""
        if len(self._buffer):
            self._buffer.sum()
