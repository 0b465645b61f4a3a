"""What follows a single token anywhere in an index: many occurrences to count, so the answers are remembered.

Answers belong to the index they came from and go with it: nobody who may not ask an index sees what it said, and an
index that a newer snapshot replaced is not kept alive from here.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from retrieval_store.index.index import Continuations, Index, Limits

MAX_KEPT = 4096  # answers over all indexes; about 3 KiB each


class AfterToken:
    """Remembered answers.

    Args:
        limits: of a query; only single tokens are asked about.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._known: WeakKeyDictionary[Index, dict[int, Continuations | None]] = WeakKeyDictionary()

    def __len__(self) -> int:
        """Answers kept."""
        return sum(map(len, self._known.values()))

    def ask(self, index: Index, token: int) -> Continuations | None:
        """What follows ``token`` in ``index``; None if it does not occur there."""
        known = self._known.get(index)
        if known is None:
            known = self._known[index] = {}
        if token not in known:
            while len(self) >= MAX_KEPT:
                fullest = max(self._known.values(), key=len)
                del fullest[next(iter(fullest))]
            known[token] = index.query(np.array([token], np.int32), self._limits)
        return known[token]
