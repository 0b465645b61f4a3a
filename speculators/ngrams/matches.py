"""Where every token of a growing text stands: n-gram tables of all orders that are never built, and no searching.

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

    def latest(self, tail: Sequence[int], lengths: Sequence[int], limit: int = 256) -> dict[int, int]:
        """Length -> the latest place whose tokens before it match the end of ``tail`` so long, if there is one.

        Args:
            tail: the last tokens of some context, at least one.
            lengths: lengths of match to look for, tokens.
            limit: latest occurrences of the last token that are looked at, which bounds the time.
        """
        found: dict[int, int] = {}
        tail = tail[-max(lengths) :]
        for place in reversed(self.behind(tail[-1])[-limit:]):
            match = self._match(place, tail)
            for length in lengths:
                if length <= match:
                    found.setdefault(length, place)
            if match == len(tail):
                break
        return found

    def matching(self, tail: Sequence[int], shortest: int, limit: int = 256) -> list[int]:
        """The places, ascending, whose tokens before them match the end of ``tail`` longest, ``shortest`` at least."""
        found: list[int] = []
        best = shortest
        for place in self.behind(tail[-1])[-limit:]:
            match = self._match(place, tail)
            if match > best:
                best, found = match, []
            if match == best:
                found.append(place)
        return found

    def _match(self, place: int, tail: Sequence[int]) -> int:
        """Tokens before ``place`` that equal the end of ``tail``; 0 at the end of the text, which nothing follows."""
        if place == len(self.text):
            return 0
        match, longest = 0, min(len(tail), place)
        while match < longest and self.text[place - 1 - match] == tail[-1 - match]:
            match += 1
        return match


def longest_matches(places: NgramPlaces, context: IntArray, tail: Sequence[int], limit: int) -> list[Place]:
    """The places of a text whose tokens before them match the end of ``tail`` longest, ``limit`` at most.

    ``context`` ``[t]`` is the text that ``places`` knows. ``tail`` holds the last tokens of some context, the last one
    at least; a match is never longer than it. Longest match first, equals by recency. Nothing follows the end of the
    text, so places are less than ``t``.
    """
    ends = np.array(places.behind(tail[-1]), np.intp) - 1
    if len(ends) and ends[-1] == len(context) - 1:
        ends = ends[:-1]
    if len(ends) == 0:
        return []
    matches = np.ones(len(ends), dtype=np.intp)
    if len(tail) > 1:
        before = ends[:, None] - np.arange(1, len(tail))
        same = (context[np.maximum(before, 0)] == np.array(tail[-2::-1], dtype=np.int32)) & (before >= 0)
        matches += np.logical_and.accumulate(same, axis=1).sum(axis=1)
    best = np.argsort(matches, kind="stable")[: -limit - 1 : -1]
    return list(zip((ends[best] + 1).tolist(), matches[best].tolist(), strict=True))
