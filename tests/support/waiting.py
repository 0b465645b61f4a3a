"""How every test waits: for a condition, under one limit that a slow machine does not reach."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

LIMIT_S = 600.0
PAUSE_S = 0.01

T = TypeVar("T")


def wait_until(condition: Callable[[], T], missing: Callable[[], object] | str = "", pause: float = PAUSE_S) -> T:
    """Return the first true value of ``condition``, which is asked every ``pause`` seconds.

    Raises:
        AssertionError: after ``LIMIT_S`` seconds, with ``missing`` (or what it returns) as the reason.
    """
    deadline = time.monotonic() + LIMIT_S
    while not (value := condition()):
        assert time.monotonic() < deadline, missing() if callable(missing) else missing or condition
        time.sleep(pause)
    return value


async def wait_until_async(condition: Callable[[], T], missing: Callable[[], object] | str = "") -> T:
    """Return the first true value of ``condition`` while other tasks of the event loop run; errors as above."""
    deadline = time.monotonic() + LIMIT_S
    while not (value := condition()):
        assert time.monotonic() < deadline, missing() if callable(missing) else missing or condition
        await asyncio.sleep(PAUSE_S)
    return value
