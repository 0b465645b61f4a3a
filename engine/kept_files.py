"""Files that survive a restart, in the user's cache on this node.

Options are sent to other nodes, so they hold paths relative to that cache.
"""

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
    """Return ``$XDG_CACHE_HOME/spectra-serve``, by default ``~/.cache/spectra-serve``; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "spectra-serve"


def in_cache(path: str) -> Path:
    """Return the place of an option's path on this node: relative paths are below ``cache_folder``, absolute ones and
    those in the user's home (``~/..``) are unchanged."""
    return cache_folder() / Path(path).expanduser()


def keep_json(file: Path, value: Any, what: str) -> None:
    """Write ``value`` to a file, whole or not at all; if the folder cannot be written, only warn.

    Args:
        file: its folders are created.
        value: plain data.
        what: the value's name, for the warning.
    """
    partial = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(value), encoding="utf-8")
        partial.replace(file)
    except OSError as error:
        logger.warning("%s were not saved: %s", what, error)
        with contextlib.suppress(OSError):
            partial.unlink()


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file or folder; the end of the process releases it.

    Raises:
        OSError: the parent folder of ``path`` cannot be written.
    """
    with path.with_name(f"{path.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
