"""An index in memory: one suffix array over all documents, eight bytes per token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from retrieval_store.index.index import Continuations, Limits, Suffixes, Tokens
from retrieval_store.index.suffix_array import END, count_tokens, sort_suffixes
from retrieval_store.index.suffix_search import DEPTH, SuffixSearch, check_limits, checked_ids, order_type


class MemoryIndex:
    """Immutable; safe to share between threads.

    Args:
        documents: token sequences, ids from 0 to ``MAX_ID``. No match and no continuation crosses from one to another.

    Raises:
        ValueError: an id is out of range.
    """

    def __init__(self, documents: Iterable[Sequence[int] | Tokens]) -> None:
        text = _joined(documents)
        order = sort_suffixes(text, DEPTH)
        starts = np.concatenate(([0], np.cumsum(count_tokens(text))))
        places = order.astype(order_type(len(text)))
        self._search = SuffixSearch(text, places, starts)

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self._search)

    @property
    def suffixes(self) -> Suffixes | None:
        """See ``Index.suffixes``."""
        return self._search.suffixes

    def query(self, context: Tokens, limits: Limits) -> Continuations | None:
        """See ``Index.query``.

        Raises:
            ValueError: ``longest`` and ``depth`` together exceed ``DEPTH``.
        """
        check_limits(limits)
        found = self._search.longest(context, limits)
        return None if found is None else self._search.continuations(*found, limits)


def _joined(documents: Iterable[Sequence[int] | Tokens]) -> npt.NDArray[np.uint32]:
    """All documents, each with an end behind it, and ends enough that every continuation can be read whole."""
    parts: list[npt.NDArray[np.uint32]] = []
    end = np.array([END], np.uint32)
    for document in documents:
        parts += (checked_ids(document).astype(np.uint32), end)
    return np.concatenate([*parts, np.full(DEPTH, END, np.uint32)])
