"""Tracks the steps of a stage that are not over, and the newest work of its device."""

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
        self._computing: Computing | None = None  # what the device was given last

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

        The returned function waits for that: a thread of the link calls it, step by step. It returns the seconds that
        the device took, and raises what that failed with.
        """
        self._computing = computing
        return partial(_wait, self._begun, computing)

    def settle(self) -> None:
        """Wait for the device after an upstream is lost. Meanwhile the stage shows as busy, so that a device that hangs
        is found, and not given the next steps. Raises what the device failed with."""
        computing, self._computing = self._computing, None
        try:
            if computing is not None:
                computing.wait()
        finally:
            self._begun = deque()  # the lost link's thread keeps the old one


def _wait(begun: deque[float], computing: Computing) -> float:
    seconds = computing.wait()
    begun.popleft()
    return seconds
