"""Prefix search in a suffix array, in memory or in mapped files.

A query costs a few binary searches among the suffixes that share their first token, and a walk through the occurrences
of the longest match. ``retrieval_store.index.suffix_kernels`` has the loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from retrieval_store.index.index import Continuations, Limits, Suffixes, Tokens
from retrieval_store.index.suffix_kernels import count_continuations, longest_suffix

IDS = np.dtype("<u4")
MAX_ID = 2**24 - 1
DEPTH = 32  # tokens on which suffixes are ordered: a query's match and continuations together


class SuffixSearch:
    """An ``Index``; immutable and thread-safe. The constructor compiles its loops, so no query waits for that.

    Args:
        text: uint32 ids of all documents, ``END`` after each and ``DEPTH`` more of them at the end.
        order: ``[n]``, unsigned, positions of all tokens, sorted by the tokens that begin there.
        starts: ``[ids + 1]``, int64, where in the order the suffixes begin that start with an id; the last is ``n``.
    """

    def __init__(self, text: npt.NDArray[Any], order: npt.NDArray[Any], starts: npt.NDArray[Any]) -> None:
        for array in (text, order, starts):
            array.flags.writeable = False  # as in mapped files: Numba compiles writeable arrays separately
        self._text = text
        self._order = order
        self._starts = starts
        longest_suffix(text, order, starts, np.zeros(1, np.int64), 1, 1)
        count_continuations(text, order, 0, 0, 0, 1, 1, 1)

    @property
    def suffixes(self) -> Suffixes | None:
        return Suffixes(self._text, self._order, self._starts) if self._order.itemsize == 4 else None

    def query(self, context: Tokens, limits: Limits) -> Continuations | None:
        """See ``Index.query``; limits that exceed ``DEPTH`` raise ValueError."""
        if limits.longest + limits.depth > DEPTH:
            raise ValueError(f"longest {limits.longest} and depth {limits.depth} must not exceed {DEPTH} together")
        # A copy: the caller's buffer may be read-only, and so another type.
        tail = np.array(context[-limits.longest :], np.int64)
        found = longest_suffix(self._text, self._order, self._starts, tail, limits.shortest, limits.longest)
        return self._continuations(context, *found, limits) if found[0] else None

    def _continuations(self, context: Tokens, match: int, first: int, behind: int, limits: Limits) -> Continuations:
        """Return what follows the last ``match`` tokens of ``context``, from ``first`` to ``behind`` in the order."""
        tokens, parents, counts = count_continuations(
            self._text, self._order, first, behind, match, limits.samples, limits.depth, limits.nodes
        )
        counted = min(behind - first, limits.samples)
        return Continuations(match, counted, tokens.tolist(), parents.tolist(), counts.tolist())


def checked_ids(document: Any) -> npt.NDArray[np.int64]:
    """Return the token ids of a document; raise ValueError if one is not from 0 to ``MAX_ID``."""
    ids = np.asarray(document, np.int64)
    if len(ids) and not 0 <= ids.min() <= ids.max() <= MAX_ID:
        raise ValueError(f"token ids must be from 0 to {MAX_ID}, got {ids.min()} to {ids.max()}")
    return ids


def order_type(length: int) -> np.dtype[np.generic]:
    """Return the type of positions in a text of ``length`` entries."""
    return np.dtype("<u4" if length < 2**32 else "<u8")
