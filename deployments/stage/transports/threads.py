"""Threads of a transport: one sends in the background, one aborts transfers.

A stage that waited until its neighbour has received a megabyte of hidden states could not compute meanwhile.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from deployments.channels.channel import Channel

WATCH_S = 0.25  # seconds between two checks of the deadline; a closed channel shows at once


class BackgroundSender:
    """Runs the blocking sends to one neighbour in order, in a thread that starts with the first of them.

    Args:
        on_lost: called once, by the thread, when a job has failed; it should close the connection.
    """

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending = 0  # jobs not done yet; under the lock
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def is_idle(self) -> bool:
        """Whether all jobs are done, so that the caller may send by itself and keep the order."""
        with self._lock:
            return self._pending == 0

    def run(self, job: Callable[[], None]) -> None:
        """Queue a job; raises EOFError when an earlier job has failed."""
        if self._error is not None:
            raise EOFError(f"an earlier frame could not be sent: {self._error}")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="stage-send", daemon=True)
            self._thread.start()
        with self._lock:
            self._pending += 1
        self._jobs.put(job)

    def close(self) -> None:
        """Let the thread end after the queued jobs: they wait for the device, then fail if the channel is closed."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self._error is None:
                try:
                    job()
                except Exception as error:  # of any kind: frames after a lost one are useless
                    self._error = error
                    self._on_lost()
            with self._lock:
                self._pending -= 1


class Watchdog:
    """Aborts transfers that wait for a lost neighbour in a library or on a device, where no channel error reaches them.

    Args:
        channel: to the neighbour; the thread ends when either side closes it.
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
            EOFError: the transfer was aborted, so its tensors are invalid.
        """
        self._deadline = time.monotonic() + seconds
        try:
            yield
        finally:
            self._deadline = math.inf
        if self._is_lost:
            raise EOFError("the neighbour's tensors did not come")

    def _watch(self) -> None:
        while not self._channel.hangs_up(within=WATCH_S) and time.monotonic() < self._deadline:
            pass
        self._is_lost = True
        self._abort()
