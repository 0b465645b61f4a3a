"""Blocking sends to a neighbour, in order and in a thread of their own, so that the loop of a stage never waits.

A stage that waited until the neighbour has received a megabyte of hidden states could not compute meanwhile, and the
pipeline would gain nothing. The thread starts with the first send that would have blocked: small frames need none.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class LinkSender:
    """One neighbour's outgoing jobs.

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
        """Queue a job.

        Raises:
            EOFError: an earlier job has failed.
        """
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
                self._do(job)
            with self._lock:
                self._pending -= 1

    def _do(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:  # of any kind: frames after a lost one are useless
            self._error = error
            self._on_lost()
