"""Compiles loops over small integers with Numba.

Drafting, lookups and planning handle a few hundred numbers in each step. Plain Python takes up to some milliseconds for
that, compiled code some ten microseconds. A function is compiled once per machine, which takes seconds, and its machine
code is kept in the user's cache.

Numba invalidates machine code only when the function's own file changes, not when a called function in another file
changes. Therefore the cache folder is named after the sources of the function's package, of the packages whose compiled
functions and intrinsics it calls, and of this module. Take constants from one of these packages only.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba

_P = ParamSpec("_P")
_R = TypeVar("_R")


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the function as machine code; arguments must be arrays, numbers, or named tuples of them."""
    return _compiled(function, counts_references=True)


def compiled_in_place(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return what ``compiled`` returns, for a function that allocates no array: it changes its arguments.

    Numba then does not count references of the arguments (its option ``_nrt``). For a named tuple of 25 arrays this
    saves 0.3 us a call, which is two thirds of the time of drafting a node.
    """
    return _compiled(function, counts_references=False)


def _compiled(function: Callable[_P, _R], counts_references: bool) -> Callable[_P, _R]:
    numba.config.CACHE_DIR = str(_cache_folder(frozenset(_packages(function))))  # read when the function is decorated
    return cast("Callable[_P, _R]", numba.njit(cache=True, nogil=True, _nrt=counts_references)(function))


def _packages(function: Any) -> set[Path]:
    """Return the folders of the function and of all that it calls; what Numba compiles has ``__wrapped__``."""
    called = (function.__globals__.get(name) for name in function.__code__.co_names)
    below = (_packages(one.__wrapped__) for one in called if hasattr(one, "__wrapped__"))
    return {Path(function.__code__.co_filename).parent}.union(*below)


@cache
def _cache_folder(packages: frozenset[Path]) -> Path:
    """Return the folder for machine code of these packages; a temporary one if the cache is not writable."""
    digest = hashlib.sha256()
    for file in [Path(__file__), *sorted(file for package in packages for file in package.glob("*.py"))]:
        digest.update(f"{file.parent.name}/{file.name}\n".encode() + file.read_bytes())
    name = f"compiled-{digest.hexdigest()[:16]}"
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "spectra-serve" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid():
            return folder
    except (OSError, RuntimeError):
        pass
    return Path(tempfile.mkdtemp(prefix="spectra-compiled-"))  # no other user can put code there
