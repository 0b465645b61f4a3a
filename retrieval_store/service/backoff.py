"""Pauses between tries of an action that may fail, and how its problems are reported."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from retrieval_store.errors import StoreError

logger = logging.getLogger(__name__)

PAUSE_S, PAUSE_MOST_S = 0.5, 10.0  # after a failed try, doubling
IDLE_SHARE = 10  # a failed try that took t seconds is followed by a pause of at least IDLE_SHARE * t
_DOUBLINGS = 32  # a float overflows after many more


def pause_after(failures: int, first: float, most: float) -> float:
    """Return the seconds to wait after ``failures`` in a row: ``first`` after one, doubling up to ``most``."""
    return min(first * 2.0 ** min(failures - 1, _DOUBLINGS), most)


def log_problem(name: str, before: str, now: str) -> str:
    """Log a problem when it begins, changes or ends, not at each try; return ``now``."""
    if now and now != before:
        logger.warning("%s: %s", name, now)
    elif before and not now:
        logger.info("%s: no problem is left", name)
    return now


class Backoff:
    """One action that is tried when it is due. Belongs to one thread; ``problem`` may be read from any.

    Args:
        name: of the action, for ``problem``.
        do: tries it once; returns the seconds until it may be due again.
    """

    def __init__(self, name: str, do: Callable[[], float]) -> None:
        self._name = name
        self._do = do
        self._failures = 0
        self._due_at = 0.0  # monotonic seconds
        self.problem = ""  # why the last try failed; "": it did not

    def __call__(self) -> None:
        """Try if the action is due. An error of a store, of a file or of a value becomes ``problem``."""
        began = time.monotonic()
        if began < self._due_at:
            return
        try:
            pause = self._do()
        except (StoreError, OSError, ValueError) as error:
            self._failures += 1
            took = time.monotonic() - began
            pause = max(pause_after(self._failures, PAUSE_S, PAUSE_MOST_S), IDLE_SHARE * took)
            # Without file names, which change with every try.
            reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
            self.problem = f"cannot {self._name}: {reason}"
        else:
            self._failures, self.problem = 0, ""
        self._due_at = time.monotonic() + pause
