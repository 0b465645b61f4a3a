"""How long to wait between tries of an action that may fail."""

from __future__ import annotations

import time
from collections.abc import Callable

from retrieval_store.errors import StoreError

PAUSE_S, PAUSE_MOST_S = 0.5, 10.0  # after a failed try, doubling
IDLE_SHARE = 10  # a failed try that took t seconds is followed by a pause of at least IDLE_SHARE * t
_DOUBLINGS = 32  # a float overflows after many more


def pause_after(failures: int, first: float, most: float) -> float:
    """Seconds to wait after so many failures in a row: ``first`` after one, doubling, ``most`` at last."""
    return min(first * 2.0 ** min(failures - 1, _DOUBLINGS), most)


class Backoff:
    """One action that is tried when it is due. Belongs to one thread; ``problem`` may be read from any.

    Args:
        name: of the action, for ``problem``.
        do: tries it once; returns seconds until it may be due again.
    """

    def __init__(self, name: str, do: Callable[[], float]) -> None:
        self._name = name
        self._do = do
        self._failures = 0
        self._at = 0.0  # monotonic seconds
        self.problem = ""  # why the last try failed; "": it did not

    def __call__(self) -> None:
        """Try, unless it is too early for that. Errors of a store, of files and of values become ``problem``."""
        began = time.monotonic()
        if began < self._at:
            return
        try:
            pause = self._do()
        except (StoreError, OSError, ValueError) as error:
            self._failures += 1
            took = time.monotonic() - began
            pause = max(pause_after(self._failures, PAUSE_S, PAUSE_MOST_S), IDLE_SHARE * took)
            self.problem = f"cannot {self._name}: {_words(error)}"
        else:
            self._failures, self.problem = 0, ""
        self._at = time.monotonic() + pause


def _words(error: Exception) -> str:
    """Without paths of files, which have another name at every try."""
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
