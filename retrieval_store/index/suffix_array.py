"""Sorts the suffixes of a token sequence by their first tokens, with NumPy, in memory that the caller bounds.

Suffixes are sorted in buckets that share first tokens, so only one bucket is in memory at a time, and the text may be a
memory map. Within a bucket, one 64-bit number packs several tokens; the next tokens break the ties.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

END = 0xFFFFFFFF  # after every document; larger than any token
BUCKET = 1 << 20  # suffixes sorted together; about 60 bytes each
_SCAN = 1 << 22  # tokens scanned at a time

Text = npt.NDArray[Any]  # uint32 in any byte order
Positions = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]


def sort_suffixes(text: Text, depth: int) -> Positions:
    """Return the positions of all tokens of ``text`` ``[n]``, sorted by the ``depth`` tokens that begin there.

    ``END`` and the text's end are larger than any token. Suffixes that agree in all ``depth`` tokens keep the order of
    their positions. Suffixes that begin with ``END`` are left out.
    """
    parts = list(sorted_buckets(text, count_tokens(text), depth))
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def count_tokens(text: Text) -> npt.NDArray[np.int64]:
    """Return how often each id occurs, ``[largest id + 1]``, without ``END``."""
    counts = np.zeros(0, np.int64)
    for start in range(0, len(text), _SCAN):
        some = text[start : start + _SCAN]
        here = np.bincount(some[some != END].astype(np.int64))
        longer, shorter = (here, counts) if len(here) > len(counts) else (counts, here)
        longer[: len(shorter)] += shorter
        counts = longer
    return counts


def sorted_buckets(text: Text, counts: npt.NDArray[np.int64], depth: int, size: int = BUCKET) -> Iterator[Positions]:
    """Yield the suffix array of ``text`` in buckets; suffixes with the same first token are in the same bucket.

    Args:
        text: ``[n]``.
        counts: of its tokens, from ``count_tokens``.
        depth: tokens to sort by.
        size: most suffixes of a bucket, unless one token alone begins more.
    """
    for first, behind in _ranges(counts, size):
        yield _sort(text, _positions(text, first, behind), len(counts), depth)


def common_prefixes(text: Text, order: Positions, depth: int) -> npt.NDArray[np.uint8]:
    """Return how many tokens each suffix shares with the one before it, ``[len(order)]``, up to ``depth`` (below 256).

    The first suffix shares none, and ``END`` is never shared.
    """
    shared = np.zeros(len(order), np.uint8)
    alive = np.arange(1, len(order))
    for offset in range(depth):
        here = _at(text, order[alive] + offset)
        same = (here == _at(text, order[alive - 1] + offset)) & (here != END)
        alive = alive[same]
        if not len(alive):
            break
        shared[alive] = offset + 1
    return shared


def _ranges(counts: npt.NDArray[np.int64], size: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of ids that begin at most ``size`` suffixes, or consist of one id."""
    first = total = 0
    for token, count in enumerate(counts.tolist()):
        if total and total + count > size:
            yield first, token
            first, total = token, 0
        total += count
    if total:
        yield first, len(counts)


def _positions(text: Text, first: int, behind: int) -> Positions:
    """Return the positions of tokens from ``first`` up to, but without, ``behind``."""
    parts = []
    for start in range(0, len(text), _SCAN):
        some = text[start : start + _SCAN]
        parts.append(np.flatnonzero((some >= first) & (some < behind)) + start)
    return np.concatenate(parts)


def _at(text: Text, positions: Positions) -> npt.NDArray[np.uint32]:
    """Return the tokens at ``positions``, ``END`` for those after the text."""
    last = len(text) - 1
    tokens = text[np.minimum(positions, last)].astype(np.uint32)
    if len(positions) and int(positions.max()) > last:
        tokens[positions > last] = END
    return tokens


def _sort(text: Text, positions: Positions, n_ids: int, depth: int) -> Positions:
    """Return ``positions``, which ascend, sorted by the ``depth`` tokens that begin there."""
    bits = max(1, n_ids.bit_length())
    packed = 64 // bits  # tokens in one number
    todo = np.arange(len(positions))  # undecided places in the order
    group = np.zeros(len(positions), np.int64)  # per place of todo: its group of equal suffixes
    order = positions.copy()
    for compared in range(0, depth, packed):
        if not len(todo):
            break
        keys = np.zeros(len(todo), np.uint64)  # the next tokens, as numbers that compare like them
        for offset in range(compared, min(compared + packed, depth)):
            keys <<= np.uint64(bits)
            keys |= np.minimum(_at(text, order[todo] + offset), n_ids).astype(np.uint64)  # END becomes n_ids
        turn = np.lexsort((keys, group)) if compared else np.argsort(keys, kind="stable")
        order[todo] = order[todo][turn]
        todo, group = _ties(todo, keys[turn], group)
    return order


def _ties(todo: Positions, keys: Keys, group: Positions) -> tuple[Positions, Positions]:
    """Return the places of ``todo``, sorted, that share group and key with a neighbour, and their new groups."""
    is_first = np.ones(len(keys) + 1, np.bool_)
    np.logical_or(keys[1:] != keys[:-1], group[1:] != group[:-1], out=is_first[1:-1])
    tied = np.flatnonzero(~(is_first[:-1] & is_first[1:]))
    groups: Positions = np.cumsum(is_first[:-1])
    return todo[tied], groups[tied]
