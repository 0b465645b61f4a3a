"""Folders of a build: one build at a time uses a work folder, and a new snapshot replaces the old one at once."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.errors import ConfigError

LOCK = "lock"
TEXTS = "texts-"


def hash_values(*values: object) -> str:
    """A short hash of JSON values; names files after everything they depend on, so that no other build uses them."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


@contextmanager
def locked(work: Path) -> Iterator[None]:
    """Make the work folder if missing, and hold its lock; raises ConfigError if another build uses it."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"--work {work}: another build uses the folder; wait for it, or name another") from error
        yield


def remove_work(work: Path) -> None:
    """Remove the texts and scores of builds; other files in the folder stay."""
    for folder in work.glob(f"{TEXTS}*"):
        shutil.rmtree(folder, ignore_errors=True)
    (work / LOCK).unlink(missing_ok=True)
    if not any(work.iterdir()):
        work.rmdir()


def replace_folder(out: Path, new: Path) -> None:
    """Rename folder ``new`` to ``out``; the old content is removed last."""
    old = _old(out)
    out.rename(old)
    try:
        new.rename(out)
    except OSError:
        old.rename(out)
        raise
    shutil.rmtree(old)


def restore_folder(out: Path) -> None:
    """Bring back the folder that a run killed in ``replace_folder`` had renamed."""
    old = _old(out)
    if old.exists() and not out.exists():
        old.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def _old(out: Path) -> Path:
    return out.with_name(f".{out.name}.old")
