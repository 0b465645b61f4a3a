"""Searches the gram indexes of all texts of a step in one compiled call.

A single call reads the memory of all texts at the same time. After a step of the target nothing is in the caches, and
waiting for memory takes longer than everything else here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.compiled import compiled, compiled_in_place
from engine.sampling.keys import compiled_mix64
from engine.tree import IntArray
from retrieval_store.index.addresses import prefetch
from speculators.ngrams.gram_index import (
    AMOUNT,
    FAR,
    HOP,
    LENGTH,
    NONE,
    ORDER,
    PLACE,
    PREVIOUS,
    RANK,
    SLOT,
    TARGET,
    GramIndex,
    LongArray,
    index_at,
    update_all,
)

MAX_SCORED_MATCH = 8  # tokens of a match that are counted, or those of the longest gram if that is more
RANDOM, FIRST, RECENT = range(3)  # which of equal matches counts
NO_ROOM = -1  # a text has outgrown its index


@compiled_in_place
def _bits(index: GramIndex, end: int) -> Any:
    """Return the 64 random bits that choose among equal matches of the text's first ``end`` tokens."""
    position = np.uint64(end) * np.uint64(0xD1B54A32D192ED03)
    return compiled_mix64(np.uint64(index.seed) + position + np.uint64(0xC4F46BE25A6A6404))


@compiled_in_place
def _begin_search(index: GramIndex, end: int, n_draft: int, tie: int) -> tuple[int, int, int]:
    """Return where the search for the best match of the end of the first ``end`` tokens begins.

    The longest match is the best. Of equal matches, those that ``n_draft`` tokens follow come first, and ``tie`` says
    which of them; if there are none, the earliest match.

    Returns:
        the order; a position with the last token of a match, ``NONE`` if there is none; and the rank of the best one.
    """
    for order in range(index.heads.shape[0] - 1, -1, -1):
        links = index.links[:, order]
        place = links[end - 1, PREVIOUS]
        if place != NONE:
            while place + n_draft >= end:
                if links[place, PREVIOUS] == NONE:
                    return order, place, 0
                place = links[place, PREVIOUS]
            rank = links[place, RANK]
            if tie == RANDOM:
                rank = np.int64(_bits(index, end) % np.uint64(rank + 1))
            return order, place, 0 if tie == FIRST else rank
    return 0, NONE, 0


@compiled_in_place
def _prefetch_links(index: GramIndex, place: int, order: int) -> None:
    prefetch(index.links, (place * index.links.shape[1] + order) * 4)
    prefetch(index.text, place)


@compiled_in_place
def _find_all(indexes: LongArray, steps: LongArray, n_draft: int, tie: int, looks_back: bool) -> None:
    """Set the last token of the best match of every text, or ``NONE``.

    All searches advance by one hop in turn, so that the memory of all of them is read at the same time.
    """
    for i in range(len(steps)):
        step, index = steps[i], index_at(indexes[steps[i, SLOT]])
        end = step[LENGTH] - (step[AMOUNT] if looks_back else 0)
        step[PLACE] = end - 1 if end >= 2 and step[AMOUNT] > 0 else NONE
        _prefetch_links(index, step[PLACE], 0)
    for i in range(len(steps)):
        step, index = steps[i], index_at(indexes[steps[i, SLOT]])
        if step[PLACE] != NONE:
            step[ORDER], step[PLACE], step[TARGET] = _begin_search(index, step[PLACE] + 1, n_draft, tie)
            _prefetch_links(index, step[PLACE], step[ORDER])
    n_active = 1
    while n_active:
        n_active = 0
        for i in range(len(steps)):
            step = steps[i]
            if step[PLACE] != NONE:
                index = index_at(indexes[step[SLOT]])
                link = index.links[step[PLACE], step[ORDER]]
                if link[RANK] > step[TARGET]:
                    step[PLACE] = link[FAR] if link[RANK] - link[HOP] >= step[TARGET] else link[PREVIOUS]
                    _prefetch_links(index, step[PLACE], step[ORDER])
                    n_active += 1


@compiled_in_place
def _count_matching(index: GramIndex, start: int, end: int) -> int:
    """Return how many tokens before ``start`` equal those before ``end``, at most as many as are scored."""
    longest = index.shortest + index.heads.shape[0] - 1
    most, n = min(max(longest, MAX_SCORED_MATCH), start), 0
    while n < most and index.text[start - 1 - n] == index.text[end - 1 - n]:
        n += 1
    return n


@compiled_in_place
def draft_all(indexes: LongArray, steps: LongArray, n_draft: int, tie: int, drafts: IntArray) -> int:
    """Return the number of texts with a match; their rows in ``drafts`` are text, tokens drafted, matching tokens, ids.

    Args:
        indexes: ``[slots, N_WORDS]``, the words of every index.
        steps: ``[n, 6]``: slot, number of tokens, most tokens to draft; the other columns are written.
        drafts: ``[n, 3 + n_draft]``, is written.

    Returns:
        ``NO_ROOM`` if the arrays of an index are too small; nothing was drafted then.
    """
    if not update_all(indexes, steps):
        return NO_ROOM
    _find_all(indexes, steps, n_draft, tie, False)
    n_found = 0
    for i in range(len(steps)):
        start = steps[i, PLACE] + 1
        if start > 0:
            index, end, row = index_at(indexes[steps[i, SLOT]]), steps[i, LENGTH], drafts[n_found]
            row[0], row[1] = i, min(n_draft, end - start, steps[i, AMOUNT])
            row[2] = _count_matching(index, start, end)
            for place in range(row[1]):
                row[3 + place] = index.text[start + place]
            n_found += 1
    return n_found


@compiled_in_place
def compare_all(indexes: LongArray, steps: LongArray, n_draft: int, tie: int, found: IntArray) -> int:
    """Compare the draft for an earlier end of every text with the tokens that followed there.

    Args:
        indexes, steps, n_draft, tie: as in ``draft_all``; the last column of steps is how many tokens followed.
        found: ``[n, 2]``, is written: tokens drafted, and how many of them are right before the first wrong one.
    """
    if not update_all(indexes, steps):
        return NO_ROOM
    _find_all(indexes, steps, n_draft, tie, True)
    for i in range(len(steps)):
        start, n, n_right = steps[i, PLACE] + 1, 0, 0
        if start > 0:
            text, end = index_at(indexes[steps[i, SLOT]]).text, steps[i, LENGTH] - steps[i, AMOUNT]
            n = min(n_draft, end - start, steps[i, AMOUNT])
            while n_right < n and text[start + n_right] == text[end + n_right]:
                n_right += 1
        found[i, 0], found[i, 1] = n, n_right
    return len(steps)


@compiled
def find_many(indexes: LongArray, steps: LongArray, n_draft: int, tie: int, found: IntArray) -> int:
    """Write the positions after all matches of one text, with the matching tokens, best first; return their number.

    Args:
        indexes, steps, n_draft, tie: as in ``draft_all``, of one text.
        found: ``[tokens of the text, 2]``, is written.
    """
    if not update_all(indexes, steps):
        return NO_ROOM
    index, end, n_found = index_at(indexes[steps[0, SLOT]]), steps[0, LENGTH], 0
    text, n_orders = index.text, index.heads.shape[0]
    places = np.empty(end, np.int32)
    for order in range(n_orders - 1, -1, -1):
        links, n_tokens = index.links[:, order], index.shortest + order
        place, n, n_full = links[end - 1, PREVIOUS], 0, 0
        while place != NONE:
            places[links[place, RANK]] = place
            n, n_full = n + 1, n_full + (place + n_draft < end)
            place = links[place, PREVIOUS]
        turn = np.int64(_bits(index, end) % np.uint64(n_full)) if n_full and tie == RANDOM else 0
        for i in range(n):
            turned = n_full - 1 - i if tie == RECENT else (turn + i) % max(n_full, 1)
            place = places[turned if i < n_full else i]
            is_longer = place >= n_tokens and text[place - n_tokens] == text[end - 1 - n_tokens]
            if order == n_orders - 1 or not is_longer:  # longer matches were found before
                found[n_found, 0], found[n_found, 1] = place + 1, _count_matching(index, place + 1, end)
                n_found += 1
    return n_found
