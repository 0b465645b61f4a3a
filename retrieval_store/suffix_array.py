"""Suffix arrays over token ids in numpy: prefix doubling that only sorts what is still undecided.

The order is decided on the first ``depth`` tokens of every suffix, which is all that queries of bounded length need.
After the first round (as many tokens as fit into 64 bits are compared at once) most suffixes of a real text are already
in place; each later round doubles the length and sorts the rest again, group by group in one call.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint32]
Positions = npt.NDArray[np.int64]


def sort_suffixes(text: Ids, depth: int) -> Positions:
    """Start positions of all suffixes of ``text`` ``[n]``, in the order of their first ``depth`` tokens.

    A text's end counts as larger than any token. Suffixes that agree in all ``depth`` tokens come in any order.
    Peak memory is about 50 bytes per token.
    """
    n = len(text)
    if n == 0:
        return np.empty(0, np.int64)
    key, compared = _packed(text)
    order: Positions = np.argsort(key)
    rank = np.full(n + 1, n, np.int64)  # of the suffix at a position: where its group begins; the last entry: the end
    todo = _regroup(order, key[order], np.arange(n), rank)
    while len(todo) and compared < depth:
        positions = order[todo]
        pair = rank[positions] * (n + 1) + rank[np.minimum(positions + compared, n)]
        turn = np.argsort(pair)
        order[todo] = positions[turn]
        todo = _regroup(order, pair[turn], todo, rank)
        compared *= 2
    return order


def _packed(text: Ids) -> tuple[npt.NDArray[np.uint64], int]:
    """The first tokens of every suffix as one number, and how many tokens that are."""
    wide = text.astype(np.uint64)
    end = int(text.max()) + 1
    bits = end.bit_length()
    count = 64 // bits
    key = np.zeros(len(text), np.uint64)
    for offset in range(count):
        rest = max(0, len(text) - offset)
        key <<= np.uint64(bits)
        key[:rest] |= wide[offset:]
        key[rest:] |= np.uint64(end)
    return key, count


def _regroup(order: Positions, keys: npt.NDArray[np.generic], places: Positions, rank: Positions) -> Positions:
    """Give each suffix at ``places`` of ``order`` the place where its group of equal ``keys`` begins as its rank.

    Returns the places whose group has more than one member.
    """
    is_first = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    first = np.flatnonzero(is_first)
    sizes = np.diff(first, append=len(keys))
    rank[order[places]] = np.repeat(places[first], sizes)
    return places[np.repeat(sizes > 1, sizes)]
