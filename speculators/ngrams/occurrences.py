"""Where every token of a growing text stands, for compiled callers: occurrences of a token are chained.

10 ns a token to learn; a lookup visits the occurrences of one token alone. ``speculators.ngrams.matches`` is the same
for callers in Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.compiled.functions import compiled, compiled_in_place
from engine.tree import IntArray

NONE = -1  # end of a chain
LONGEST = 8  # tokens of a match: longer ones say no more
RANDOM, FIRST, RECENT = range(3)  # which of several equal continuations comes first


class Occurrences:
    """The occurrences of every token of a growing text, chained from the latest back: 8 to 32 bytes a token."""

    def __init__(self) -> None:
        self._n = 0  # tokens known
        self._heads = np.full(64, NONE, np.int32)  # by bucket: the latest place of its tokens
        self._before = np.empty(64, np.int32)  # by place: the one before it in its bucket

    def matches(self, text: IntArray, context: IntArray, longest: int) -> tuple[IntArray, IntArray]:
        """Where the end of ``context`` (one token at least) occurs in ``text`` with a token behind it.

        Args:
            text: ``[t]``; what it was at the last call and what has followed since, which is learnt first, or the
                beginning of it.
            context: its last token is looked up, and those before it are compared.
            longest: the most tokens that are compared.

        Returns:
            The number of matching tokens, at most ``longest``, and the position behind them; ``[n]``, the latest first.
        """
        return _matches(*self.chains(text), context, longest)

    def repeated(self, text: IntArray, longest: int) -> int:
        """How many tokens at the end of ``text``, at most ``longest``, stand somewhere before in the same order."""
        return _repeated(*self.chains(text), longest)

    def chains(self, text: IntArray) -> tuple[IntArray, int, IntArray, IntArray]:
        """What compiled callers take: the text, how much of it is chained, and the chains for all of it."""
        if len(text) > len(self._before):
            size = 1 << (2 * len(text) - 1).bit_length()
            self._n, self._heads, self._before = 0, np.full(size, NONE, np.int32), np.empty(size, np.int32)
        n_known, self._n = self._n, max(self._n, len(text))
        return text, n_known, self._heads, self._before


@compiled_in_place
def _bucket(heads: IntArray, token: int) -> int:
    return int(np.uint32(np.uint32(token) * np.uint32(0x9E3779B9)) >> np.uint32(5)) & (len(heads) - 1)


@compiled_in_place
def _link(text: IntArray, first: int, heads: IntArray, before: IntArray) -> None:
    """Chain the tokens from ``first`` on."""
    for place in range(first, len(text)):
        bucket = _bucket(heads, text[place])
        before[place] = heads[bucket]
        heads[bucket] = place


@compiled_in_place
def _match(text: IntArray, place: int, context: IntArray, longest: int) -> int:
    """How many tokens up to ``place``, at most ``longest``, are those at the end of ``context``; the first one is."""
    length = 1
    while length < longest and length <= place and length < len(context):
        if text[place - length] != context[len(context) - 1 - length]:
            break
        length += 1
    return length


@compiled
def _matches(
    text: IntArray, n_known: int, heads: IntArray, before: IntArray, context: IntArray, longest: int
) -> tuple[IntArray, IntArray]:
    _link(text, n_known, heads, before)
    last = context[-1]
    first = heads[_bucket(heads, last)]
    n, place = 0, first
    while place != NONE:
        n += place + 1 < len(text) and text[place] == last
        place = before[place]
    lengths, starts = np.empty(n, np.int32), np.empty(n, np.int32)
    n, place = 0, first
    while place != NONE:
        if place + 1 < len(text) and text[place] == last:
            lengths[n], starts[n] = _match(text, place, context, longest), place + 1
            n += 1
        place = before[place]
    return lengths, starts


@compiled_in_place
def _repeated(text: IntArray, n_known: int, heads: IntArray, before: IntArray, longest: int) -> int:
    _link(text, n_known, heads, before)
    last, best = text[-1], 0
    place = heads[_bucket(heads, last)]
    while place != NONE and best < longest:
        if place + 1 < len(text) and text[place] == last:
            best = max(best, _match(text, place, text, longest))
        place = before[place]
    return best


@compiled
def continuations(
    text: IntArray,
    n_known: int,
    heads: IntArray,
    before: IntArray,
    longest: int,
    shortest: int,
    n_draft: int,
    tie_break: int,
    mixed: Any,
    most: int,
) -> IntArray:
    """Where the end of a text is continued, best first: behind the longest matches, of these where there are
    ``n_draft`` tokens, then as there are fewer.

    Args:
        text: with its chains, as ``Occurrences.chains`` returns them.
        n_known: likewise.
        heads: likewise.
        before: likewise.
        longest: tokens of a match that count.
        shortest: tokens of a match, at least.
        n_draft: tokens.
        tie_break: among equals RANDOM, FIRST or RECENT.
        mixed: uint64; random bits.
        most: continuations that are wanted.

    Returns:
        ``[n, 2]``: where it begins, and how many tokens before it match, LONGEST at most or what counts.
    """
    lengths, starts = _matches(text, n_known, heads, before, text, max(longest, LONGEST))
    best = np.empty((min(len(starts), most), 2), np.int32)
    full = np.empty(len(starts), np.int32)
    n = 0
    for order in range(longest, shortest - 1, -1):
        n_full = 0
        for i in range(len(starts) - 1, -1, -1):  # the first of the text first
            if lengths[i] >= order and starts[i] + n_draft <= len(text):
                full[n_full] = i
                n_full += 1
        # Turning the list by a random amount makes every start equally likely to come first, and shuffles nothing.
        turn = np.int64(mixed % np.uint64(n_full)) if n_full and tie_break == RANDOM else 0
        for place in range(n_full):
            i = full[n_full - 1 - place if tie_break == RECENT else (turn + place) % n_full]
            if n < len(best) and min(lengths[i], longest) == order:  # longer matches have had their turn
                best[n, 0], best[n, 1] = starts[i], lengths[i]
                n += 1
        # Behind the others the text ends early: every later start leaves one token less or more, so there are no ties.
        for i in range(len(starts) - 1, -1, -1):
            if n < len(best) and min(lengths[i], longest) == order and starts[i] + n_draft > len(text):
                best[n, 0], best[n, 1] = starts[i], lengths[i]
                n += 1
    return best[:n]
