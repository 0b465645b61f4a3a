"""Prefix search in a suffix array, wherever it lies: in memory or in mapped files.

A query costs a few binary searches among the suffixes that share their first token, and going through the occurrences
of the longest one that was found. ``retrieval_store.index.suffix_kernels`` has the loops.
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
    """Read-only; safe to share between threads. Made with its loops compiled, so that no query waits for that.

    Args:
        text: uint32 ids of all documents, ``END`` behind each and ``DEPTH`` more of them at the end.
        order: ``[n]``, unsigned, positions of all tokens in the order of what begins there.
        starts: ``[ids + 1]``, int64, where in the order the suffixes begin that start with an id; the last is ``n``.
    """

    def __init__(self, text: npt.NDArray[Any], order: npt.NDArray[Any], starts: npt.NDArray[Any]) -> None:
        for array in (text, order, starts):
            array.flags.writeable = False  # as mapped files are: to Numba another type, compiled apart
        self._text = text
        self._order = order
        self._starts = starts
        self.longest(np.zeros(1, np.int32), Limits(1, 1))
        count_continuations(text, order, 0, 0, 0, 1, 1, 1)

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self._order)

    @property
    def suffixes(self) -> Suffixes | None:
        """See ``Index.suffixes``."""
        return Suffixes(self._text, self._order, self._starts) if self._order.itemsize == 4 else None

    def longest(self, context: Tokens, limits: Limits) -> tuple[int, int, int] | None:
        """The longest suffix of ``context`` that occurs, or None: its tokens, its first place in the order, behind its
        last."""
        # A copy: what a buffer lends may be read-only, and so another type.
        tail = np.array(context[-limits.longest :], np.int64)
        found = longest_suffix(self._text, self._order, self._starts, tail, limits.shortest, limits.longest)
        return found if found[0] else None

    def continuations(self, match: int, first: int, behind: int, limits: Limits) -> Continuations:
        """What follows the occurrences, of ``match`` tokens, from ``first`` to ``behind`` in the order."""
        tokens, parents, counts = count_continuations(
            self._text, self._order, first, behind, match, limits.samples, limits.depth, limits.nodes
        )
        counted = min(behind - first, limits.samples)
        return Continuations(match, counted, tokens.tolist(), parents.tolist(), counts.tolist())


def check_limits(limits: Limits) -> None:
    """Refuse what the order of the suffixes cannot answer.

    Raises:
        ValueError: ``longest`` and ``depth`` together exceed ``DEPTH``.
    """
    if limits.longest + limits.depth > DEPTH:
        raise ValueError(f"longest {limits.longest} and depth {limits.depth} must not exceed {DEPTH} together")


def checked_ids(document: Any) -> npt.NDArray[np.int64]:
    """Token ids of a document, as integers.

    Raises:
        ValueError: an id is not from 0 to ``MAX_ID``.
    """
    ids = np.asarray(document, np.int64)
    if len(ids) and not 0 <= ids.min() <= ids.max() <= MAX_ID:
        raise ValueError(f"token ids must be from 0 to {MAX_ID}, got {ids.min()} to {ids.max()}")
    return ids


def order_type(length: int) -> np.dtype[np.generic]:
    """What positions in a text of ``length`` entries are stored as."""
    return np.dtype("<u4" if length < 2**32 else "<u8")
