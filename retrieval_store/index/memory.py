"""An index in memory: one suffix array over all documents, eight bytes per token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from retrieval_store.index.index import Tokens
from retrieval_store.index.suffix_array import END, count_tokens, sort_suffixes
from retrieval_store.index.suffix_search import DEPTH, SuffixSearch, checked_ids, order_type


class MemoryIndex(SuffixSearch):
    """Searches documents in memory, of ids from 0 to ``MAX_ID``; no match or continuation crosses their ends."""

    def __init__(self, documents: Iterable[Sequence[int] | Tokens]) -> None:
        end = np.array([END], np.uint32)
        parts: list[npt.NDArray[np.uint32]] = []
        for document in documents:
            parts += (checked_ids(document).astype(np.uint32), end)
        text = np.concatenate([*parts, np.full(DEPTH, END, np.uint32)])
        order = sort_suffixes(text, DEPTH).astype(order_type(len(text)))
        super().__init__(text, order, np.concatenate(([0], np.cumsum(count_tokens(text)))))
