"""Compiled loops: the one place that knows Numba.

Drafting works on a few hundred small numbers per step. Plain Python takes a millisecond for that, which is a third of
a small target's step; compiled it takes some ten microseconds. Code is compiled once per machine (some ten seconds) and
kept in the user's cache, in a folder named after the sources: Numba itself would not notice that a function changed
which another file's function calls.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import numba

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _cache_folder() -> Path:
    """Where machine code of these sources is kept; a temporary folder if the cache cannot be written."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    name = f"compiled-{digest.hexdigest()[:16]}"
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "spectra-serve" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid():
            return folder
    except (OSError, RuntimeError):
        pass
    return Path(tempfile.mkdtemp(prefix="spectra-compiled-"))  # for this process only: nobody else may put code there


numba.config.CACHE_DIR = str(_cache_folder())


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function as machine code; arguments must be arrays, numbers, or named tuples of them."""
    return cast("Callable[_P, _R]", numba.njit(cache=True, nogil=True)(function))
