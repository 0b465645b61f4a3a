"""Reports the progress and speed of a long load, in the log and on a terminal."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

GIB = 1 << 30
LOG_INTERVAL_S = 5.0  # seconds

logger = logging.getLogger(__name__)


class Meter:
    """Counts bytes read by any thread.

    Args:
        what: name of the data, for the log.
    """

    def __init__(self, what: str = "weights") -> None:
        self.what = what
        self.n_bytes = 0  # of all reads
        self.seconds = 0.0  # of all finished reads
        self.total = 0  # bytes of all reads that began
        self._before = 0  # bytes before the last read began
        self._began = self._logged = 0.0
        self._lock = threading.Lock()
        self._bar: tqdm[None] | None = None

    @contextmanager
    def reading(self, n_bytes: int) -> Iterator[None]:
        """Measure a read of ``n_bytes``, and log its duration at the end."""
        self.total += n_bytes
        self._began = self._logged = time.monotonic()
        self._before = self.n_bytes
        with tqdm(desc=self.what, total=n_bytes, unit="B", unit_scale=True, leave=False, disable=None) as self._bar:
            yield
        took = time.monotonic() - self._began
        self.seconds += took
        logger.info("%s: %s read in %.1f s%s", self.what, _size(n_bytes), took, _rate(n_bytes, took))

    def add(self, n_bytes: int) -> None:
        with self._lock:
            self.n_bytes += n_bytes
            if self._bar is not None:
                self._bar.update(n_bytes)
            now = time.monotonic()
            if now - self._logged < LOG_INTERVAL_S:
                return
            self._logged = now
            so_far = f"{_size(self.n_bytes)} of {_size(self.total)}, {self.n_bytes / self.total:.0%}"
            logger.info("%s: %s read%s", self.what, so_far, _rate(self.n_bytes - self._before, now - self._began))


def _size(n_bytes: int) -> str:
    return f"{n_bytes / GIB:.2f} GiB" if n_bytes >= GIB else f"{n_bytes / (1 << 20):.1f} MiB"


def _rate(n_bytes: int, seconds: float) -> str:
    """Return ``, 2.10 GiB/s``; nothing for a read too short to measure."""
    return f", {_size(int(n_bytes / seconds))}/s" if seconds >= 0.01 else ""
