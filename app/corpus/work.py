"""The folder in which a corpus is built, by one build at a time.

Each file lies under a key of everything that it depends on: builds with other settings neither use nor overwrite it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from pathlib import Path
from types import TracebackType

from engine.errors import ConfigError

LOCK = "lock"
TEXTS = "texts-"


def key_of(*parts: object) -> str:
    """A short hash of values that JSON can write."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


class WorkFolder:
    """A context: the folder, made if missing and locked.

    Args:
        is_kept: whether ``forget`` leaves the files in place.

    Raises:
        ConfigError: another build uses the folder.
    """

    def __init__(self, path: Path, is_kept: bool) -> None:
        self.path = path
        self._is_kept = is_kept

    def __enter__(self) -> WorkFolder:
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = (self.path / LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise ConfigError(f"--work {self.path}: another build uses the folder") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def texts(self, key: str) -> Path:
        """The folder of the texts with this key."""
        return self.path / f"{TEXTS}{key}"

    def forget(self) -> None:
        """Remove the texts and scores of builds unless they are to be kept; other files in the folder stay."""
        if self._is_kept:
            return
        for folder in self.path.glob(f"{TEXTS}*"):
            shutil.rmtree(folder, ignore_errors=True)
        (self.path / LOCK).unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()
