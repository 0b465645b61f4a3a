"""A folder for the Unix sockets of a process. If the process is killed, the next process of its kind removes it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "spectra-router-"  # of a router's folder
LOCK = "lock"  # file that the process holds locked as long as it lives


class SocketFolder:
    """A private temporary folder. Creating or removing one also removes the folders of killed processes."""

    def __init__(self, prefix: str = PREFIX) -> None:
        self._prefix = prefix
        _clear(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._lock = _locked(self.path / "new")
        os.rename(self.path / "new", self.path / LOCK)  # so other processes never find the lock unheld

    def remove(self) -> None:
        """Remove the folder; may be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        _clear(self._prefix)  # a process that was killed while its successor started


def _locked(lock: Path) -> int | None:
    """A descriptor that holds a folder's lock; None when another process holds it."""
    descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _clear(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # the folder of another user, or another process was faster
            if (folder / LOCK).exists() and (lock := _locked(folder / LOCK)) is not None:  # a new folder has none yet
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
