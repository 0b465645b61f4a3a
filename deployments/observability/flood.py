"""Keeps a flood of lines that say the same from filling a disk, and says how many were left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable


class FloodGate:
    """Admits the first ``most`` lines of a kind within ``seconds``; those after them are only counted.

    Needs a running event loop as soon as a line is left out.

    Args:
        most: lines of a kind in one span of time.
        seconds: of the span, which begins with the first line.
        tell: is told at the end of a span how many lines of a kind were left out, if any were.
    """

    def __init__(self, most: int, seconds: float, tell: Callable[[Hashable, int], None]) -> None:
        self._most = most
        self._seconds = seconds
        self._tell = tell
        self._spans: dict[Hashable, tuple[float, int]] = {}  # kind -> end of its span, lines so far

    def admits(self, kind: Hashable, now: float) -> bool:
        """Whether a line of ``kind`` is to be written; there must be few kinds, as they are remembered.

        Args:
            kind: lines of one kind replace each other.
            now: seconds, of any clock that only goes forward.
        """
        end, lines = self._spans.get(kind, (now, 0))
        if now >= end and lines <= self._most:  # else the span's end is on its way, which says what was left out
            end, lines = now + self._seconds, 0
        self._spans[kind] = (end, lines + 1)
        if lines == self._most:
            asyncio.get_running_loop().call_later(max(0.0, end - now), self._end, kind)
        return lines < self._most

    def _end(self, kind: Hashable) -> None:
        _, lines = self._spans.pop(kind)
        self._tell(kind, lines - self._most)
