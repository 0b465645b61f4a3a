"""Finds where the last tokens of a growing text occurred before, in compiled code.

The occurrences of a token are chained, the latest first. A search follows one chain.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.compiled import compiled, compiled_in_place
from engine.protocol import Needs, RequestView
from engine.tree import IntArray
from speculators.per_request import PerRequest

NONE = -1  # end of a chain
MAX_SCORED_MATCH = 8  # tokens of a match that ``continuations`` counts, or ``longest`` if that is more


class Occurrences:
    """The chained occurrences of every token of one text: 8 to 32 bytes a token."""

    def __init__(self) -> None:
        self._n = 0  # tokens in the chains
        self._heads = np.full(64, NONE, np.int32)  # by bucket of tokens: the latest position
        self._before = np.empty(64, np.int32)  # by position: the previous one in its bucket

    def matches(self, text: IntArray, context: IntArray, longest: int) -> tuple[IntArray, IntArray]:
        """Return where the end of ``context`` occurs in ``text`` with a token after it, latest first.

        The arrays ``[n]`` are the numbers of matching tokens, 1 to ``longest``, and the positions after them. ``text``
        may have more tokens than in the last call, or be the beginning of it; ``context`` has at least one token.
        """
        return _matches(*self.chains(text), context, longest)

    def chains(self, text: IntArray) -> tuple[IntArray, int, IntArray, IntArray]:
        """Return the first arguments of compiled functions: the text, how much of it is chained, and the chains."""
        if len(text) > len(self._before):
            size = 1 << (2 * len(text) - 1).bit_length()
            self._n, self._heads, self._before = 0, np.full(size, NONE, np.int32), np.empty(size, np.int32)
        n_known, self._n = self._n, max(self._n, len(text))
        return text, n_known, self._heads, self._before


class ChainedText(PerRequest[Occurrences]):
    """Base of methods that read nothing but the request's text."""

    needs = Needs()
    catches_up = True  # each draft adds the tokens that are not in the chains

    def new_state(self, view: RequestView) -> Occurrences:
        return Occurrences()


@compiled_in_place
def _bucket(heads: IntArray, token: int) -> int:
    return int(np.uint32(np.uint32(token) * np.uint32(0x9E3779B9)) >> np.uint32(5)) & (len(heads) - 1)


@compiled
def _matches(
    text: IntArray, n_known: int, heads: IntArray, before: IntArray, context: IntArray, longest: int
) -> tuple[IntArray, IntArray]:
    for place in range(n_known, len(text)):
        bucket = _bucket(heads, text[place])
        before[place] = heads[bucket]
        heads[bucket] = place
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
            length, most = 1, min(longest, place + 1, len(context))
            while length < most and text[place - length] == context[len(context) - 1 - length]:
                length += 1
            lengths[n], starts[n] = length, place + 1
            n += 1
        place = before[place]
    return lengths, starts


@compiled
def continuations(
    text: IntArray,
    n_known: int,
    heads: IntArray,
    before: IntArray,
    longest: int,
    shortest: int,
    n_draft: int,
    latest_first: bool,
    random_bits: Any,  # uint64; 0: equal matches keep their order
    most: int,
) -> IntArray:
    """Return ``[n, 2]``, at most ``most`` starts of continuations of a text and their match in tokens, best first.

    Of equal matches, those that ``n_draft`` tokens follow come first; then the others, longest continuation first.
    """
    lengths, starts = _matches(text, n_known, heads, before, text, max(longest, MAX_SCORED_MATCH))
    best, n = np.empty((min(len(starts), most), 2), np.int32), 0
    full = np.empty(len(starts), np.int32)
    for order in range(longest, shortest - 1, -1):
        n_full = 0
        for i in range(len(starts) - 1, -1, -1):  # ascending positions
            if lengths[i] >= order and starts[i] + n_draft <= len(text):
                full[n_full] = i
                n_full += 1
        # Rotating the list by a random amount gives every start the same chance to come first.
        turn = np.int64(random_bits % np.uint64(n_full)) if n_full else 0
        for place in range(n_full):
            i = full[n_full - 1 - place if latest_first else (turn + place) % n_full]
            if n < len(best) and min(lengths[i], longest) == order:
                best[n, 0], best[n, 1] = starts[i], lengths[i]
                n += 1
        for i in range(len(starts) - 1, -1, -1):
            if n < len(best) and min(lengths[i], longest) == order and starts[i] + n_draft > len(text):
                best[n, 0], best[n, 1] = starts[i], lengths[i]
                n += 1
    return best[:n]
