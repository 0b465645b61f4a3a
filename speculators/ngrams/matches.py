"""Where every token of a growing text stands: an n-gram table of all orders that is never built.

What an n-gram table counts, the places of a text already hold: the count of ``z`` behind the context ``c`` is how often
``z`` stands where ``c`` ends. Looking up the places of the last token and comparing backwards gives every order at
once, and a token more costs one list entry instead of one table entry per order.

A *place* is a position that has a token before it: what stands at the place followed the tokens before it. Its *match*
is the number of tokens before it that equal the end of some context, at least 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.tree import IntArray

Place = tuple[int, int]  # (place, match)


class NgramPlaces:
    """The places of one request's text; memory grows with the text, about 100 bytes a token."""

    def __init__(self) -> None:
        self.text: list[int] = []
        self._behind: dict[int, list[int]] = {}

    def learn(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        behind = self._behind
        for place, token in enumerate(tokens, len(self.text) + 1):
            known = behind.get(token)
            if known is None:
                behind[token] = [place]
            else:
                known.append(place)
        self.text.extend(tokens)

    def behind(self, token: int) -> Sequence[int]:
        """The places behind all occurrences of ``token``, ascending; the last one may lie at the end of the text."""
        return self._behind.get(token, ())


def longest_matches(context: IntArray, tail: Sequence[int], limit: int) -> list[Place]:
    """The places of ``context`` ``[t]`` whose tokens before them match the end of ``tail`` longest, ``limit`` at most.

    ``tail`` holds the last tokens of some context, the last one at least; a match is never longer than it. Longest
    match first, equals by recency. Nothing follows the end of the context, so places are less than ``t``.
    """
    ends = np.flatnonzero(context[:-1] == tail[-1])
    if len(ends) == 0:
        return []
    matches = np.ones(len(ends), dtype=np.intp)
    if len(tail) > 1:
        before = ends[:, None] - np.arange(1, len(tail))
        same = (context[np.maximum(before, 0)] == np.array(tail[-2::-1], dtype=np.int32)) & (before >= 0)
        matches += np.logical_and.accumulate(same, axis=1).sum(axis=1)
    best = np.argsort(matches, kind="stable")[: -limit - 1 : -1]
    return list(zip((ends[best] + 1).tolist(), matches[best].tolist(), strict=True))
