"""What a call does, counted: the same on a busy machine as on an idle one, which no time is."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Work(NamedTuple):
    """Of one call."""

    lines: int  # of Python that ran, once for each time
    peak: int  # bytes that it held at most, those of arrays included: a search of a whole array shows here


def counted(call: Callable[[], T]) -> tuple[T, Work]:
    """What the call returns, and its work; counted in two calls, as counting lines takes memory."""
    lines = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    tracemalloc.start()
    try:
        found = call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return found, Work(lines, peak)
