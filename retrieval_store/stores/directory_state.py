"""The state of a directory store: one JSON file, replaced atomically, changed under a lock.

Safe between processes and threads of one machine (``flock``).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from retrieval_store.errors import StoreError
from retrieval_store.snapshots.files import private_folder, sync_folder
from retrieval_store.snapshots.names import is_version
from retrieval_store.stores.pointer import Pointer

STATE = "current.json"
LOCK = "lock"


class DirectoryState(msgspec.Struct):
    """Contents of ``current.json``."""

    pointer: Pointer = msgspec.field(default_factory=Pointer)
    moves: list[tuple[int, str, float]] = []
    versions: dict[str, float | None] = {}  # in order of publication; when it expires, seconds since 1970

    def expired(self) -> list[str]:
        """Versions whose grace period is over."""
        now = time.time()
        return [name for name, at in self.versions.items() if at is not None and at <= now]


def read_state(folder: Path, where: str) -> DirectoryState:
    """The state now; a missing folder is an empty store.

    Raises:
        StoreError: the file does not decode.
    """
    try:
        raw = (folder / STATE).read_bytes()
    except FileNotFoundError:
        return DirectoryState()
    try:
        state = msgspec.json.decode(raw, type=DirectoryState)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{where}: {STATE} does not decode: {error}") from error
    names = [*state.versions, *state.pointer.before, *filter(None, [state.pointer.version])]
    if not all(is_version(name) for name in names):
        raise StoreError(f"{where}: {STATE} names versions that are not 16 hexadecimal digits")
    return state


@contextmanager
def changing(folder: Path, where: str) -> Iterator[DirectoryState]:
    """The state, locked; written with the caller's changes unless an error is raised."""
    private_folder(folder)
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        state = read_state(folder, where)
        yield state
        _replace(folder / STATE, msgspec.json.encode(state))
    finally:
        os.close(descriptor)


def _replace(path: Path, raw: bytes) -> None:
    beside = path.with_suffix(".new")  # one writer at a time: the lock is held
    with beside.open("wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)
