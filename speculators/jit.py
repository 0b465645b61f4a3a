"""Compiled loops: the one place that knows Numba.

Drafting works on a few hundred small numbers per step. Plain Python takes a millisecond for that, which is a third of
a small target's step; compiled it takes some ten microseconds. Code is compiled once per machine (a few seconds) and
kept beside the source, or in the user's cache where that cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

_P = ParamSpec("_P")
_R = TypeVar("_R")


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function as machine code; arguments must be arrays, numbers, or named tuples of them."""
    return cast("Callable[_P, _R]", numba.njit(cache=True, nogil=True)(function))
