"""How a text repeats itself: the measure that the demo models are judged by, and trained against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

LOOP_GRAM, LOOP_TIMES = 8, 3  # a text loops when some 8-gram occurs three times


def grams(ids: Sequence[int], n: int) -> list[tuple[int, ...]]:
    """All n-grams of `ids`, in order."""
    return [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]


def is_loop(ids: Sequence[int]) -> bool:
    """True when some 8-gram occurs at least three times."""
    return max(Counter(grams(ids, LOOP_GRAM)).values(), default=0) >= LOOP_TIMES


def repeated(ids: Sequence[int], n: int) -> list[bool]:
    """Per token: does it complete an n-gram that occurred before?"""
    seen: set[tuple[int, ...]] = set()
    flags = [False] * min(n - 1, len(ids))
    for gram in grams(ids, n):
        flags.append(gram in seen)
        seen.add(gram)
    return flags
