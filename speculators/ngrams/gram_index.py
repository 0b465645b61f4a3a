"""Indexes the n-grams of growing texts in compiled code.

The *grams* of a text are its runs of ``shortest`` to ``longest`` tokens. A hash table per order maps a gram to the last
position where it ends. The *links* of that position lead to earlier ones where the same gram ends: the previous one,
and one that is farther. Thus any of ``n`` occurrences is O(log n) hops away. The links of a position never change, so
they also answer what was known when the text ended there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.compiled import compiled_in_place
from engine.tree import IntArray
from retrieval_store.index.addresses import opener, prefetch

LongArray = npt.NDArray[np.int64]

NONE = -1  # no earlier occurrence
# Columns of links: the previous occurrence, the number of earlier ones, a farther occurrence, and how many it skips.
PREVIOUS, RANK, FAR, HOP = range(4)


class GramIndex(NamedTuple):
    """One text, and its grams by number of tokens."""

    text: IntArray  # [>= n]
    heads: LongArray  # [n_orders, size] hash tables: 32 bits of the gram's hash, its last position + 1; 0: free
    links: IntArray  # [>= n positions, n_orders, 4]
    shortest: int
    seed: int  # of the request, times GOLDEN64
    n_known: int  # tokens with links
    room: int  # most tokens that both text and links have room for


EXAMPLE = GramIndex(np.zeros(1, np.int32), np.zeros((1, 1), np.int64), np.zeros((1, 1, 4), np.int32), 0, 0, 0, 0)
index_at = opener(EXAMPLE)
TEXT_LENGTH, N_KNOWN, ROOM, N_WORDS = 1, 11, 12, 13  # words of an index, in the order of ``addresses_of``
# Columns of steps: an index, its number of tokens, a request's number; the last three belong to the search.
SLOT, LENGTH, AMOUNT, ORDER, PLACE, TARGET, N_COLUMNS = range(7)


@compiled_in_place
def _is_same(text: IntArray, one: int, other: int, n: int) -> bool:
    """Return whether the ``n`` tokens up to and including two positions are equal."""
    back = 0
    while back < n and text[one - back] == text[other - back]:
        back += 1
    return back == n


@compiled_in_place
def _mix(mixed: Any, token: int) -> Any:
    """Return the hash of a gram with one more token before it."""
    mixed = (mixed ^ np.uint64(np.uint32(token))) * np.uint64(0x9E3779B97F4A7C15)
    return mixed ^ mixed >> np.uint64(29)


@compiled_in_place
def _position(head: Any) -> int:
    """Return the position in an entry of a hash table, ``NONE`` if it is free."""
    return int(head & 0xFFFFFFFF) - 1


@compiled_in_place
def _learn(index: GramIndex) -> None:
    """Link the positions from ``n_known`` on."""
    text, links, shortest = index.text, index.links, index.shortest
    for place in range(index.n_known, len(text)):
        mixed = np.uint64(0)
        for n in range(1, shortest + index.heads.shape[0]):
            if place + 1 >= n:
                mixed = _mix(mixed, text[place + 1 - n])
                if n >= shortest:
                    _link(text, index.heads[n - shortest], links[:, n - shortest], place, n, mixed)
            elif n >= shortest:
                links[place, n - shortest, PREVIOUS] = NONE


@compiled_in_place
def _prefetch_new(index: GramIndex, stage: int) -> None:
    """Load what linking the last position reads, in three stages because each one finds what the next one reads."""
    text, heads, links, place = index.text, index.heads, index.links, len(index.text) - 1
    n_orders, mixed = heads.shape[0], np.uint64(0)
    if stage == 0:
        prefetch(links, place * n_orders * 4)
    for n in range(1, min(index.shortest + n_orders, place + 2)):
        mixed, order = _mix(mixed, text[place + 1 - n]), n - index.shortest
        if order >= 0:
            at = np.int64(mixed >> np.uint64(32) & np.uint64(heads.shape[1] - 1))
            found = _position(heads[order, at]) if stage else NONE
            if stage == 0:
                prefetch(heads, order * heads.shape[1] + at)
            elif stage == 1 and found != NONE:
                prefetch(links, (found * n_orders + order) * 4)
                prefetch(text, found)
            elif stage == 2 and found != NONE:
                prefetch(links, (links[found, order, FAR] * n_orders + order) * 4)


@compiled_in_place
def _link(text: IntArray, heads: LongArray, links: IntArray, place: int, n: int, mixed: Any) -> None:
    """Link the gram of ``n`` tokens that ends at ``place``."""
    mark = mixed >> np.uint64(32)
    mask = np.uint64(len(heads) - 1)
    at = mark & mask
    previous = NONE
    while heads[at] != 0:
        found = _position(heads[at])
        if np.uint64(heads[at]) >> np.uint64(32) == mark and _is_same(text, found, place, n):
            previous = found
            break
        at = (at + np.uint64(1)) & mask
    heads[at] = np.int64(mark << np.uint64(32) | np.uint64(place + 1))
    links[place, PREVIOUS] = previous
    links[place, RANK], links[place, FAR], links[place, HOP] = 0, place, 0
    if previous != NONE:
        # Hops grow like the digits of a skew binary number (Myers 1983): O(log n) of them lead to any occurrence.
        far, hop = links[previous, FAR], links[previous, HOP]
        is_double = hop == links[far, HOP] and hop > 0
        links[place, RANK] = links[previous, RANK] + 1
        links[place, FAR] = links[far, FAR] if is_double else previous
        links[place, HOP] = 2 * hop + 1 if is_double else 1


@compiled_in_place
def move_heads(heads: LongArray, larger: LongArray) -> None:
    """Copy the entries of hash tables to larger ones, which are empty."""
    mask = np.uint64(larger.shape[1] - 1)
    for order in range(len(heads)):
        for head in heads[order]:
            if head != 0:
                at = np.uint64(head) >> np.uint64(32) & mask
                while larger[order, at] != 0:
                    at = (at + np.uint64(1)) & mask
                larger[order, at] = head


@compiled_in_place
def update_all(indexes: LongArray, steps: LongArray) -> bool:
    """Link the new tokens of all texts; return False and do nothing if there is no room for them."""
    for i in range(len(steps)):
        words = indexes[steps[i, SLOT]]
        if steps[i, LENGTH] > words[ROOM]:
            return False
    for stage in range(3):
        for i in range(len(steps)):
            words = indexes[steps[i, SLOT]]
            words[TEXT_LENGTH] = steps[i, LENGTH]
            if words[N_KNOWN] < words[TEXT_LENGTH]:
                _prefetch_new(index_at(words), stage)
    for i in range(len(steps)):
        words = indexes[steps[i, SLOT]]
        _learn(index_at(words))
        words[N_KNOWN] = max(words[N_KNOWN], words[TEXT_LENGTH])
    return True
