"""Finds where the last tokens of a growing text occurred before, in compiled code.

The occurrences of a token are chained, the latest first. A search follows one chain.
"""

from __future__ import annotations

import numpy as np

from engine.compiled import compiled, compiled_in_place
from engine.tree import IntArray

NONE = -1  # end of a chain


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
        if len(text) > len(self._before):
            size = 1 << (2 * len(text) - 1).bit_length()
            self._n, self._heads, self._before = 0, np.full(size, NONE, np.int32), np.empty(size, np.int32)
        n_known, self._n = self._n, max(self._n, len(text))
        return _matches(text, n_known, self._heads, self._before, context, longest)


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
