"""A folder for a process's Unix sockets that does not outlive it for long, whatever it dies of."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "spectra-router-"  # of a router's
LOCK = "lock"  # held as long as the process lives


class SocketFolder:
    """A private folder in the system's temporary one. Making one clears away those whose processes were killed."""

    def __init__(self, prefix: str = PREFIX) -> None:
        _clear(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._lock = _locked(self.path / "new")
        os.rename(self.path / "new", self.path / LOCK)  # whoever sees the lock finds it held

    def remove(self) -> None:
        """Done with it; may be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


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
        with contextlib.suppress(OSError):  # another user's, or another process was faster
            if (folder / LOCK).exists() and (lock := _locked(folder / LOCK)) is not None:  # a new one has none yet
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
