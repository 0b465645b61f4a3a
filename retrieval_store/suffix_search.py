"""Prefix search in a suffix array, wherever its bytes lie: in memory or in mapped files.

A query costs a few binary searches among the suffixes that share their first token. Token ids are big-endian bytes,
because comparing such bytes is comparing ids: every probe of a search is one slice and one ``memcmp``, without an array
in sight. What follows neighbouring suffixes is in order too, so counting all prefixes of it is one comparison of each
row with the one before.
"""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from retrieval_store.index import ROOT, Continuations, Limits, Tokens
from retrieval_store.suffix_array import END

BIG = np.dtype(">u4")
MAX_ID = 2**24 - 1
DEPTH = 32  # tokens on which suffixes are ordered: a query's match and continuations together

FEW = 8  # occurrences

Text: TypeAlias = "bytes | mmap.mmap"


class SuffixSearch:
    """Read-only; safe to share between threads.

    Args:
        text: big-endian ids of all documents, ``END`` behind each and ``DEPTH`` more of them at the end.
        order: ``[n]``, positions of all tokens in the order of what begins there.
        starts: ``[ids + 1]``, where in the order the suffixes begin that start with an id; the last entry is ``n``.
    """

    def __init__(self, text: Text, order: npt.NDArray[Any], starts: npt.NDArray[Any]) -> None:
        self._text = text
        self._order = order
        # Indexing a view gives Python ints, several times faster than an array does.
        self._places: memoryview[int] = order.data
        self._starts: memoryview[int] = starts.data
        self._words = np.frombuffer(text, np.uint32)  # byte-swapped ids: good for equality alone

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self._order)

    def longest(self, context: Tokens, limits: Limits) -> tuple[int, int, bytes] | None:
        """(tokens of the longest suffix of ``context`` that occurs, its first place in the order, itself), or None."""
        # Every part of a suffix that occurs does, too: search the length between one that does and one that does not.
        low, high = limits.shortest - 1, min(limits.longest, len(context))
        pattern = context[len(context) - high :].astype(BIG).tobytes()
        place = -1
        while low < high:
            length = (low + high + 1) // 2
            at = self._first(pattern[len(pattern) - 4 * length :], int(context[-length]))
            if at >= 0:
                low, place = length, at
            else:
                high = length - 1
        return None if place < 0 else (low, place, pattern[len(pattern) - 4 * low :])

    def continuations(self, match: int, place: int, suffix: bytes, limits: Limits) -> Continuations:
        """What follows the occurrences of ``suffix``, of ``match`` tokens, the first of which is at ``place``."""
        behind = self._behind(place, suffix)
        if behind - place == 1:
            return self._only(match, self._places[place] + match, limits)
        count = min(behind - place, limits.samples)
        if behind - place == count <= FEW:
            return self._few(match, self._places[place:behind].tolist(), limits)
        rows: Any = slice(place, behind)
        if count < behind - place:
            rows = place + np.arange(count) * (behind - place) // count
        return self._count(match, self._order[rows].astype(np.int64) + match, limits)

    def _first(self, suffix: bytes, head: int) -> int:
        """The first place whose suffix of the text starts with ``suffix``, the first id of which is ``head``; or -1."""
        starts = self._starts
        if not 0 <= head < len(starts) - 1:
            return -1
        read = self._reader(len(suffix))
        behind = starts[head + 1]
        place = bisect_left(self._places, suffix, starts[head], behind, key=read)
        return place if place < behind and read(self._places[place]) == suffix else -1

    def _behind(self, place: int, suffix: bytes) -> int:
        """The place behind the last suffix of the text that starts with ``suffix``; ``place`` is the first one."""
        read = self._reader(len(suffix))
        known, step, n = place, 1, len(self._order)
        while known + step < n and read(self._places[known + step]) == suffix:
            known += step
            step *= 4  # most ranges are short: gallop, then search what is left
        return bisect_right(self._places, suffix, known + 1, min(known + step, n), key=read)

    def _reader(self, size: int) -> Callable[[int], bytes]:
        """What stands at a position: ``size`` bytes of ids, which compare like the ids."""
        text = self._text
        return lambda position: text[4 * position : 4 * position + size]

    def _only(self, match: int, start: int, limits: Limits) -> Continuations:
        """One occurrence: a chain."""
        depth = min(limits.depth, limits.nodes)
        chain = self._row(start, depth)
        return Continuations(match, 1, chain, range(-1, len(chain) - 1), [1] * len(chain))

    def _few(self, match: int, places: list[int], limits: Limits) -> Continuations:
        """As ``_count``, for so few occurrences that arrays would take longer than going through them."""
        tokens: list[int] = []
        parents: list[int] = []
        counts: list[int] = []
        depths: list[int] = []
        path: list[int] = []  # nodes of the row before
        before: Sequence[int] = ()
        for place in places:
            row = self._row(place + match, limits.depth)
            shared = _n_shared(row, before)
            del path[shared:]
            for node in path:
                counts[node] += 1
            for depth in range(shared, len(row)):
                tokens.append(row[depth])
                parents.append(path[-1] if path else ROOT)
                counts.append(1)
                depths.append(depth)
                path.append(len(tokens) - 1)
            before = row
        best = sorted(range(len(tokens)), key=lambda node: depths[node] - counts[node] * DEPTH)[: limits.nodes]
        new = {node: place for place, node in enumerate(best)}
        new[ROOT] = ROOT
        return Continuations(
            match,
            len(places),
            [tokens[node] for node in best],
            [new[parents[node]] for node in best],
            [counts[node] for node in best],
        )

    def _row(self, position: int, depth: int) -> list[int]:
        """The tokens at a position, up to the end of their document."""
        raw = self._text[4 * position : 4 * (position + depth)]
        row = list(struct.unpack(f">{depth}I", raw))
        return row[: row.index(END)] if END in row else row

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
        alive = np.logical_and.accumulate(columns != END, axis=0).ravel()[cells]
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
        tokens = columns.ravel()[cells[best]].view(BIG)
        return Continuations(match, count, tokens.tolist(), new[parents[best]].tolist(), counts[best].tolist())


def _n_shared(row: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that both begin with."""
    n = 0
    for token, same in zip(row, other, strict=False):
        if token != same:
            break
        n += 1
    return n


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
