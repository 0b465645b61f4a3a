"""Ends what waits for a lost neighbour in a library or on a device, where no error of the channel reaches it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from deployments.channels.channel import Channel

LOOK_S = 0.25  # seconds between two looks at the deadline; that the channel is hung up shows at once


class Watchdog:
    """A thread that watches a channel, and the time that a transfer takes.

    Args:
        channel: to the neighbour; the thread ends when it is hung up, by either side.
        abort: ends all transfers; the thread calls it once, when the neighbour is lost or too slow. It may block.
    """

    def __init__(self, channel: Channel, abort: Callable[[], None]) -> None:
        self._channel = channel
        self._abort = abort
        self._deadline = math.inf  # ``time.monotonic`` by which the transfer must be over
        self._is_lost = False
        threading.Thread(target=self._watch, name="stage-watchdog", daemon=True).start()

    @contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Limit how long the block may wait. One thread at a time.

        Raises:
            EOFError: the transfer was aborted, so its tensors are not true.
        """
        self._deadline = time.monotonic() + seconds
        try:
            yield
        finally:
            self._deadline = math.inf
        if self._is_lost:
            raise EOFError("the neighbour's tensors did not come")

    def _watch(self) -> None:
        while not self._channel.hangs_up(within=LOOK_S) and time.monotonic() < self._deadline:
            pass
        self._is_lost = True
        self._abort()
