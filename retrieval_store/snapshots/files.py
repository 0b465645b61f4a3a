"""Files and folders of snapshots on this machine."""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from retrieval_store.errors import DamagedSnapshotError
from retrieval_store.snapshots.snapshot import FileEntry

READ = 1 << 20  # bytes of a file read at a time
_UNFINISHED = re.compile(r"\.[\w.-]+[.-][0-9a-f]{32}")  # see ``unfinished``


def read_blocks(path: Path, size: int = READ) -> Iterator[bytes]:
    """Yield the file in blocks of ``size`` bytes."""
    with path.open("rb") as file:
        while block := file.read(size):
            yield block


def checked(blocks: Iterable[bytes], entry: FileEntry, what: str) -> Iterator[bytes]:
    """Yield ``blocks``; raise DamagedSnapshotError, which begins with ``what``, if they differ from the manifest."""
    digest, size = sha256(), 0
    for block in blocks:
        digest.update(block)
        size += len(block)
        if size > entry.bytes:
            raise DamagedSnapshotError(f"{what} has more than the {entry.bytes} bytes of the manifest")
        yield block
    if size != entry.bytes:
        raise DamagedSnapshotError(f"{what} has {size} bytes instead of {entry.bytes}")
    if digest.hexdigest() != entry.sha256:
        raise DamagedSnapshotError(f"{what} does not have the sha256 of the manifest")


def write_blocks(path: Path, blocks: Iterable[bytes]) -> None:
    """Write a new file and sync it to the disk."""
    with path.open("xb") as file:
        for block in blocks:
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def open_folder(folder: Path) -> Iterator[int]:
    """Open a folder, to lock it, to sync it or to identify it: no other folder gets its inode number meanwhile."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Sync the names in ``folder`` to the disk, before or after a rename."""
    with open_folder(folder) as handle:
        os.fsync(handle)


def private_folder(path: Path) -> None:
    """Create a folder and missing ones above it, for this user alone: they hold tenants' texts."""
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)


def unfinished(folder: Path, name: str) -> Path:
    """Return a new path in ``folder`` that ``sweep_unfinished`` removes if the process that writes to it dies."""
    return folder / f".{name}.{uuid.uuid4().hex}"


def discard(folder: Path) -> None:
    """Remove a folder as a whole, by renaming it first."""
    away = unfinished(folder.parent, folder.name)
    with suppress(OSError):
        folder.rename(away)
        shutil.rmtree(away, ignore_errors=True)


def newest(folder: Path) -> float:
    """Return the time of the last write to a folder or its files, in seconds since 1970."""
    return max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))


def sweep_unfinished(folder: Path, seconds: float) -> None:
    """Remove ``unfinished`` paths of ``folder`` without a write for ``seconds``: their process is dead."""
    for left in folder.glob(".*"):
        with suppress(OSError):
            if _UNFINISHED.fullmatch(left.name) and time.time() - newest(left) > seconds:
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def read_through(folder: Path) -> None:
    """Read every file of a snapshot into the page cache, so that no query waits for a disk.

    Reading in large blocks releases the interpreter's lock; touching the pages of a map would delay drafting threads.
    """
    block = bytearray(READ)
    for file in folder.iterdir():
        with file.open("rb", buffering=0) as source:
            while source.readinto(block):
                pass
