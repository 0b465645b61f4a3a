"""Tracks the unfinished steps of a stage, and the newest work of its device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial

from engine.stage.base import Computing


class StepProgress:
    """Written by the stage's loop; other threads read ``busy_since`` and call what ``leave_to_device`` returns."""

    def __init__(self) -> None:
        self._begun: deque[float] = deque()  # ``time.monotonic``, oldest first
        self._computing: Computing | None = None  # the device's newest work

    @property
    def busy_since(self) -> float | None:
        """``time.monotonic`` when the oldest step that is not over yet began; None between steps."""
        begun = [*self._begun]
        return begun[0] if begun else None

    def begin(self) -> None:
        """A step begins."""
        self._begun.append(time.monotonic())

    def end(self) -> None:
        """The step that began last is over."""
        self._begun.pop()

    def leave_to_device(self, computing: Computing) -> Callable[[], float]:
        """The step that began last is over when the device is done.

        A thread of the transport calls the returned function for one step after the other. The function waits, returns
        the seconds that the device took, and raises the device's error.
        """
        self._computing = computing
        return partial(_wait, self._begun, computing)

    def settle(self) -> None:
        """Wait for the device after an upstream is lost; raises the device's error.

        Meanwhile the stage shows as busy: a device that hangs is found, and gets no further steps.
        """
        computing, self._computing = self._computing, None
        try:
            if computing is not None:
                computing.wait()
        finally:
            self._begun = deque()  # the lost transport's thread keeps the old one


def _wait(begun: deque[float], computing: Computing) -> float:
    seconds = computing.wait()
    begun.popleft()
    return seconds
