"""Texts that repeat themselves, as small models write them: they flatter what drafts from n-grams, and teach little."""

from __future__ import annotations

from collections.abc import Sequence

NGRAM, TIMES = 8, 3  # a text loops when one n-gram of this length occurs so many times


def loop_start(tokens: Sequence[int]) -> int | None:
    """Position of the second occurrence of the first n-gram that occurs ``TIMES`` times; None without a loop."""
    seen: dict[tuple[int, ...], list[int]] = {}
    for i in range(len(tokens) - NGRAM + 1):
        positions = seen.setdefault(tuple(tokens[i : i + NGRAM]), [])
        positions.append(i)
        if len(positions) == TIMES:
            return positions[1]
    return None
