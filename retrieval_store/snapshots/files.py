"""Files of snapshots on this machine: blocks that are checked while they pass, folders that appear and go at once."""

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
    """The file in pieces of ``size`` bytes."""
    with path.open("rb") as file:
        while block := file.read(size):
            yield block


def checked(blocks: Iterable[bytes], entry: FileEntry, what: str) -> Iterator[bytes]:
    """Pass ``blocks`` on; the end is only reached if they are what the manifest says.

    Raises:
        DamagedSnapshotError: they are not; the message begins with ``what``.
    """
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
    """A new file, on the disk when this returns."""
    with path.open("xb") as file:
        for block in blocks:
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def open_folder(folder: Path) -> Iterator[int]:
    """A descriptor of a folder: to lock it, to sync it, or to know it again, as no other gets its number meanwhile."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Have the names in ``folder`` on the disk, before or after a rename."""
    with open_folder(folder) as handle:
        os.fsync(handle)


def private_folder(path: Path) -> None:
    """Make a folder and those above it as far as they are missing, for this user alone: tenants' texts lie there."""
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)


def unfinished(folder: Path, name: str) -> Path:
    """A new path in ``folder`` for what ``sweep_unfinished`` removes if the process that writes there dies."""
    return folder / f".{name}.{uuid.uuid4().hex}"


def discard(folder: Path) -> None:
    """Remove a folder; it disappears at once."""
    away = unfinished(folder.parent, folder.name)
    with suppress(OSError):
        folder.rename(away)
        shutil.rmtree(away, ignore_errors=True)


def newest(folder: Path) -> float:
    """When something was last written there, seconds since 1970: a folder does not age with its files."""
    return max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))


def sweep_unfinished(folder: Path, seconds: float) -> None:
    """Remove what is unfinished in ``folder`` and was not written to for so long: its process is dead."""
    for left in folder.glob(".*"):
        with suppress(OSError):
            if _UNFINISHED.fullmatch(left.name) and time.time() - newest(left) > seconds:
                shutil.rmtree(left) if left.is_dir() else left.unlink()


def read_through(folder: Path) -> None:
    """Read every file of a snapshot once, so that no query waits for a disk.

    In large blocks, without the interpreter's lock: touching one map page after another would hold up the threads of
    this process that draft meanwhile.
    """
    block = bytearray(READ)
    for file in folder.iterdir():
        with file.open("rb", buffering=0) as source:
            while source.readinto(block):
                pass
