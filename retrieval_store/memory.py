"""An index in memory: one suffix array over all documents, eight bytes per token.

A query costs a few binary searches among the suffixes that share their first token. Token ids are kept as big-endian
bytes, because comparing such bytes is comparing ids: every probe of a search is one slice and one ``memcmp``, without
an array in sight. What follows neighbouring suffixes is in order too, so counting all prefixes of it is one comparison
of each row with the one before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from retrieval_store.index import ROOT, Continuations, Limits, Tokens
from retrieval_store.suffix_array import sort_suffixes

_BIG = np.dtype(">u4")
_END = 0xFFFFFFFF  # behind every document; no token id
MAX_ID = 2**24 - 1
DEPTH = 32  # tokens on which suffixes are ordered: a query's match and continuations together

_Words = npt.NDArray[np.uint32]


class MemoryIndex:
    """Immutable; safe to share between threads.

    Args:
        documents: token sequences, ids from 0 to ``MAX_ID``. No match and no continuation crosses from one to another.
        namespace: whose requests may see it; None: everybody's.

    Raises:
        ValueError: an id is out of range.
    """

    def __init__(self, documents: Iterable[Sequence[int] | Tokens], namespace: str | None = None) -> None:
        self.namespace = namespace
        text = _joined(documents)
        self._text = text.astype(_BIG).tobytes()
        order = _order(text)
        heads = text[order]
        # Where in the order the suffixes begin that start with an id, for every id and one more.
        self._starts: memoryview[int] = np.searchsorted(heads, np.arange(int(heads.max(initial=0)) + 2)).data
        self._order: npt.NDArray[Any] = order.astype(np.int32 if len(text) < 2**31 else np.int64)
        # Indexing a view gives Python ints, several times faster than an array does.
        self._places: memoryview[int] = self._order.data
        self._words: _Words = np.frombuffer(self._text, np.uint32)  # byte-swapped ids: good for equality alone

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self._order)

    @property
    def nbytes(self) -> int:
        """Memory of text and suffix array, bytes."""
        return len(self._text) + self._order.nbytes

    def query(self, context: Tokens, limits: Limits) -> Continuations | None:
        """See ``Index.query``.

        Raises:
            ValueError: ``longest`` and ``depth`` together exceed ``DEPTH``.
        """
        if limits.longest + limits.depth > DEPTH:
            raise ValueError(f"longest {limits.longest} and depth {limits.depth} must not exceed {DEPTH} together")
        found = self._longest(context, limits)
        if found is None:
            return None
        match, first, last = found
        if last - first == 1:
            return self._only(match, self._places[first] + match, limits)
        count = min(last - first, limits.samples)
        rows = first + np.arange(count) * (last - first) // count
        return self._count(match, self._order[rows] + match, limits)

    def _longest(self, context: Tokens, limits: Limits) -> tuple[int, int, int] | None:
        """(length of the longest suffix that occurs, its first place in the order, behind its last), or None."""
        # Every part of a suffix that occurs does, too: search the length between one that does and one that does not.
        low, high = limits.shortest - 1, min(limits.longest, len(context))
        pattern = context[len(context) - high :].astype(_BIG).tobytes()
        place = -1
        while low < high:
            length = (low + high + 1) // 2
            suffix = pattern[len(pattern) - 4 * length :]
            at = self._first(suffix, int(context[-length]))
            if at >= 0:
                low, place = length, at
            else:
                high = length - 1
        if place < 0:
            return None
        return low, place, self._behind(place, pattern[len(pattern) - 4 * low :])

    def _first(self, suffix: bytes, head: int) -> int:
        """The first place whose suffix of the text starts with ``suffix``, the first id of which is ``head``; or -1."""
        starts = self._starts
        if head >= len(starts) - 1:
            return -1
        read = self._reader(len(suffix) // 4)
        behind = starts[head + 1]
        place = bisect_left(self._places, suffix, starts[head], behind, key=read)
        return place if place < behind and read(self._places[place]) == suffix else -1

    def _behind(self, place: int, suffix: bytes) -> int:
        """The place behind the last suffix of the text that starts with ``suffix``; ``place`` is the first one."""
        read = self._reader(len(suffix) // 4)
        known, step, n = place, 1, len(self._order)
        while known + step < n and read(self._places[known + step]) == suffix:
            known += step
            step *= 4  # most ranges are short: gallop, then search what is left
        return bisect_right(self._places, suffix, known + 1, min(known + step, n), key=read)

    def _reader(self, length: int) -> Callable[[int], bytes]:
        """What stands at a position: ``length`` ids as bytes that compare like the ids."""
        text, size = self._text, 4 * length
        return lambda position: text[4 * position : 4 * position + size]

    def _only(self, match: int, start: int, limits: Limits) -> Continuations:
        """One occurrence: a chain."""
        depth = min(limits.depth, limits.nodes)
        chain = np.frombuffer(self._text, _BIG, min(depth, len(self._text) // 4 - start), 4 * start).tolist()
        if _END in chain:
            chain = chain[: chain.index(_END)]
        return Continuations(match, 1, chain, range(-1, len(chain) - 1), [1] * len(chain))

    def _count(self, match: int, starts: npt.NDArray[Any], limits: Limits) -> Continuations:
        """The most frequent prefixes of what begins at ``starts`` ``[count]``, which are in the order of the texts."""
        count = len(starts)
        columns = self._words[starts + np.arange(limits.depth)[:, None]]  # [depth, count]
        is_new = np.empty(columns.shape, np.bool_)
        is_new[:, 0] = True
        np.not_equal(columns[:, 1:], columns[:, :-1], out=is_new[:, 1:])
        np.logical_or.accumulate(is_new, axis=0, out=is_new)
        cells = np.flatnonzero(is_new)  # one per prefix, by depth, then order: cell = depth * count + first row
        counts = np.diff(cells, append=is_new.size)
        alive = np.logical_and.accumulate(columns != _END, axis=0).ravel()[cells]
        cells, counts = cells[alive], counts[alive]
        if len(cells) > limits.nodes:
            # A prefix is at least as frequent as what continues it and comes before it: parents are kept.
            kept = np.sort(np.argsort(-counts, kind="stable")[: limits.nodes])
            cells, counts = cells[kept], counts[kept]
        # A parent's cell is the last one of its depth that begins no later than the child.
        parents = np.searchsorted(cells, cells - count, side="right") - 1
        best = np.argsort(-counts, kind="stable")
        new = np.empty(len(cells) + 1, np.int64)
        new[best], new[-1] = np.arange(len(cells)), ROOT
        tokens = columns.ravel()[cells[best]].view(_BIG)
        return Continuations(match, count, tokens.tolist(), new[parents[best]].tolist(), counts[best].tolist())


def _joined(documents: Iterable[Sequence[int] | Tokens]) -> _Words:
    """All documents, each with an end behind it, and ends enough that every continuation can be read whole."""
    parts: list[_Words] = []
    end = np.array([_END], np.uint32)
    for document in documents:
        ids = np.asarray(document, np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() <= MAX_ID:
            raise ValueError(f"token ids must be from 0 to {MAX_ID}, got {ids.min()} to {ids.max()}")
        parts += (ids.astype(np.uint32), end)
    return np.concatenate([*parts, np.full(DEPTH, _END, np.uint32)])


def _order(text: _Words) -> npt.NDArray[np.int64]:
    """Positions of all tokens, in the order of what begins there; ends are left out."""
    is_end = text == _END
    ids = text[~is_end]
    if len(ids) == 0:
        return np.empty(0, np.int64)
    small = np.where(is_end, ids.max() + 1, text).astype(np.uint32)
    return sort_suffixes(small, DEPTH)[: len(ids)]
