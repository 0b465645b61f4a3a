"""Files on their way in and out of a store: checked while they pass, complete or not there at all.

Knows folders of this machine, not where blocks come from.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from retrieval_store.errors import DamagedSnapshotError, SnapshotError, StoreError
from retrieval_store.snapshots.snapshot import MANIFEST, FileEntry, Manifest, check_sizes, read_manifest

READ = 1 << 20  # bytes of a file read at a time
_LEFT = re.compile(r"\.[0-9a-f]{16}\.[0-9a-f]{32}")  # what ``receive`` and ``discard`` call folders
_ABANDONED = 3600.0  # seconds after which a half-fetched folder is nobody's


def read_blocks(path: Path, size: int = READ) -> Iterator[bytes]:
    """The file in pieces of ``size`` bytes."""
    with path.open("rb") as file:
        while block := file.read(size):
            yield block


def checked(blocks: Iterable[bytes], entry: FileEntry, what: str) -> Iterator[bytes]:
    """Pass ``blocks`` on; the end is only reached if they are what the manifest says.

    Raises:
        DamagedSnapshotError: they are not.
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


def sync_folder(folder: Path) -> None:
    """Have the names in ``folder`` on the disk, before or after a rename."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def private_folder(path: Path) -> None:
    """Make a folder and those above it as far as they are missing, for this user alone: tenants' texts lie there."""
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)


def newest(folder: Path) -> float:
    """When something was last written there, seconds since 1970: a folder does not age with its files."""
    return max(path.stat().st_mtime for path in (folder, *folder.iterdir()))


def fetched(target: Path) -> Manifest | None:
    """The manifest of the snapshot at ``target`` if it is this version and complete."""
    if not target.is_dir():
        return None
    try:
        manifest = read_manifest(target)
        check_sizes(target, manifest)
    except SnapshotError:
        return None
    return manifest if manifest.version == target.name else None


def receive(target: Path, raw: bytes, manifest: Manifest, deliver: Callable[[str, Path], None]) -> Path:
    """Let ``deliver`` write every file, then show all of them at ``target`` at once.

    Raises:
        StoreError: files cannot be written here.
    """
    with _local(target):
        private_folder(target.parent)
        _sweep(target.parent)
        beside = target.parent / f".{target.name}.{uuid.uuid4().hex}"
        beside.mkdir()
        try:
            for name in manifest.files:
                deliver(name, beside / name)
            write_blocks(beside / MANIFEST, [raw])
            sync_folder(beside)
            with _locked(target.parent):  # or what another process has just put there would be discarded
                if fetched(target) is None:  # not before there is something better
                    discard(target)
                with suppress(OSError):  # not empty: another process was faster, with the same contents
                    beside.rename(target)
                    sync_folder(target.parent)
                if fetched(target) is None:
                    raise StoreError(f"{target}: what was fetched is not there; is somebody removing it?")
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return target


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Alone in ``folder`` among those who do this."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def discard(folder: Path) -> None:
    """Remove a folder; it disappears at once."""
    away = folder.parent / f".{folder.name}.{uuid.uuid4().hex}"
    with suppress(OSError):
        folder.rename(away)
        shutil.rmtree(away, ignore_errors=True)


def _sweep(folder: Path) -> None:
    for left in folder.glob(".*"):
        with suppress(OSError):
            if _LEFT.fullmatch(left.name) and time.time() - newest(left) > _ABANDONED:
                shutil.rmtree(left)


@contextmanager
def _local(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{target}: the snapshot cannot be written here: {error.strerror}") from error
