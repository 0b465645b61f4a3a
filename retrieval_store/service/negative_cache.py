"""Names behind which there was nothing when somebody looked: whoever else wants to be looked for comes first.

Remembered for a while only, since text may be published later, and never more than so many.
"""

from __future__ import annotations

import time

MISSED_S = 60.0
MOST = 4096  # names; the oldest are forgotten first


class Misses:
    """Belongs to one thread, or to who holds a lock."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # monotonic seconds; the latest last

    def __contains__(self, name: str) -> bool:
        """Whether there was nothing lately."""
        return time.monotonic() < self._until.get(name, 0.0)

    def __len__(self) -> int:
        """Names that take up memory."""
        return len(self._until)

    def add(self, name: str) -> None:
        """There is nothing now."""
        self._until.pop(name, None)
        self._until[name] = time.monotonic() + MISSED_S
        if len(self._until) > MOST:
            del self._until[next(iter(self._until))]

    def discard(self, name: str) -> None:
        """There is something, or there may be."""
        self._until.pop(name, None)
