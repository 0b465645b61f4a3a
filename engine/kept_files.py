"""What is kept from one start of a process to the next, in the user's cache on the node of the process that asks:
options name places in it, and travel."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/spectra-serve``, by default ``~/.cache/spectra-serve``; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "spectra-serve"


def in_cache(path: str) -> Path:
    """A path of options, here: an absolute one, or one in the user's home (``~/..``), as it is; others are below
    ``cache_folder``."""
    return cache_folder() / Path(path).expanduser()


def keep_json(file: Path, value: Any, what: str) -> None:
    """Write ``value`` to a file, whole or not at all; a folder that cannot be written is no error.

    Args:
        file: where; its folders are made.
        value: plain data.
        what: the value's name, for the warning.
    """
    partial = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(value), encoding="utf-8")
        partial.replace(file)
    except OSError as error:
        logger.warning("%s were not kept: %s", what, error)
        with contextlib.suppress(OSError):
            partial.unlink()


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file or folder while others wait for it; it falls with the process.

    Raises:
        OSError: the folder that ``path`` is in cannot be written.
    """
    with path.with_name(f"{path.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
