"""Snapshots on this node's disk: one folder per store and namespace, shared by all processes of the node.

A snapshot is written to an unfinished folder, checked, and renamed to its version under the folder's lock (``flock`` on
the folder itself). So a process that is killed leaves only unfinished folders, and frees the lock. Processes touch the
snapshots that they use. Those that no process has touched for a while are removed, so the disk does not fill up.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from retrieval_store.errors import DamagedSnapshotError, SnapshotError
from retrieval_store.snapshots.files import (
    discard,
    newest,
    open_folder,
    private_folder,
    sweep_unfinished,
    sync_folder,
    unfinished,
)
from retrieval_store.snapshots.names import folder_segment, is_version
from retrieval_store.snapshots.snapshot import check_files, verify

logger = logging.getLogger(__name__)

UNUSED_S = 600.0  # an untouched snapshot is removed after this time: readers have opened its successor
DELTA_UNUSED_S = 60.0  # there is a new delta every few seconds
TOUCH_S = 20.0  # time between two touches of a snapshot in use
UNFINISHED_S = 3600.0  # without a write: the process that wrote it was killed
FORGOTTEN_S = 24 * 3600.0  # an unused folder of a namespace or of a store in memory is removed after this time
_OWN = "own-"  # folders of stores in memory
SNAPSHOTS, DELTAS = "snapshots", "deltas"
_CURRENT = "current.json"


class SnapshotFolder:
    """Snapshots of one namespace of one store; those not touched for ``unused`` seconds are removed."""

    def __init__(self, path: Path, unused: float = UNUSED_S) -> None:
        self.path = path
        self._unused = unused
        self._touched: dict[str, float] = {}  # version -> monotonic seconds

    def snapshot(self, version: str) -> Path:
        """Return the path of a version, which need not exist."""
        return self.path / version

    def has(self, version: str) -> bool:
        """Return whether a version is here and all its files have their sizes."""
        return _is_whole(self.snapshot(version), version)

    def has_sound(self, version: str, tokenizer_hash: str) -> bool:
        """Return whether a version is here and its files have their hashes; remove a damaged copy.

        Raises ForeignSnapshotError if it was built for another tokenizer.
        """
        place = self.snapshot(version)
        if not self.has(version):
            return False
        with suppress(FileNotFoundError), open_folder(place) as looked_at:
            try:
                verify(place, tokenizer_hash)  # may take seconds, so not under the lock
            except (DamagedSnapshotError, FileNotFoundError) as error:
                with self._locked():
                    if os.path.samestat(os.fstat(looked_at), place.stat()):  # not a sound one brought meanwhile
                        logger.warning("the copy on this node is removed: %s", error)
                        discard(place)
            else:
                return True
        return False

    def fetch(self, version: str, bring: Callable[[Path], None]) -> Path:
        """Return the folder of a version; call ``bring`` if it is not here.

        Only one process of the node at a time calls it; the others wait, and find the snapshot.

        Args:
            version: of the snapshot.
            bring: writes the verified files and the manifest to the empty folder that it is given.

        Raises:
            DamagedSnapshotError: the files are not this version, or not all of it.
            OSError: the disk is full, or the folder cannot be written.
            Exception: whatever ``bring`` raises.
        """
        if not self.has(version):
            with self._locked():
                if not self.has(version):
                    sweep_unfinished(self.path, UNFINISHED_S)
                    with self.scratch(version) as scratch:
                        scratch.mkdir()
                        bring(scratch)
                        self._place(scratch, version)
        return self.snapshot(version)

    @contextmanager
    def scratch(self, name: str = "new") -> Iterator[Path]:
        """Yield a new path in this folder; it is removed at the end unless ``adopt`` was called for it."""
        private_folder(self.path)
        room = unfinished(self.path, name)
        room.mkdir()
        try:
            yield room / "snapshot"
        finally:
            shutil.rmtree(room, ignore_errors=True)

    def adopt(self, built: Path, version: str) -> Path:
        """Move the snapshot at a ``scratch`` path to that of its version, unless it exists; return that path."""
        with self._locked():
            self._place(built, version)
        return self.snapshot(version)

    def _place(self, built: Path, version: str) -> None:
        """Do the work of ``adopt``; the caller holds the lock."""
        if self.has(version):
            return
        if not _is_whole(built, version):
            raise DamagedSnapshotError(f"{built} is not the whole of version {version}")
        sync_folder(built)
        discard(self.snapshot(version))  # a damaged copy stays until there is a sound one
        built.rename(self.snapshot(version))
        sync_folder(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Wait for the lock, which one thread of one process holds at a time."""
        private_folder(self.path)
        with open_folder(self.path) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def confirm(self, version: str) -> None:
        """Record that ``version`` is current in the store, for a start while the store is away."""
        path = self.path / _CURRENT
        if self.confirmed()[0] == version:
            with suppress(OSError):
                os.utime(path)
            return
        private_folder(self.path)
        new = unfinished(self.path, "current")
        new.write_bytes(msgspec.json.encode({"version": version}))
        new.replace(path)

    def confirmed(self) -> tuple[str, float]:
        """Return the version that was confirmed last, and when, in seconds since 1970; "" and 0 if none was."""
        path = self.path / _CURRENT
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, str])["version"], path.stat().st_mtime
        except (OSError, KeyError, msgspec.DecodeError):
            return "", 0.0

    def touch(self, versions: Collection[str]) -> None:
        """Record that versions are in use."""
        now = time.monotonic()
        for version in versions:
            if now - self._touched.get(version, -TOUCH_S) >= TOUCH_S:
                with suppress(OSError):
                    os.utime(self.snapshot(version))
                    self._touched[version] = now

    def sweep(self, keep: Collection[str]) -> None:
        """Remove versions not in ``keep`` that were not touched for a while, and the files of killed processes."""
        self._touched = {version: at for version, at in self._touched.items() if version in keep}
        with suppress(OSError):
            for entry in list(self.path.iterdir()):
                is_unused = is_version(entry.name) and entry.name not in keep
                if is_unused and time.time() - entry.stat().st_mtime > self._unused:
                    discard(entry)
        sweep_unfinished(self.path, UNFINISHED_S)


class NodeCache:
    """The folders of one store on this node.

    Args:
        root: folder of all stores.
        store_url: without a password; "": a store in memory, which this process alone uses.
    """

    def __init__(self, root: Path, store_url: str) -> None:
        name = hashlib.sha256(store_url.encode()).hexdigest()[:12] if store_url else f"{_OWN}{uuid.uuid4().hex}"
        self._root = root / name

    def snapshots(self, namespace: str) -> SnapshotFolder:
        return folder_at(self._root / _folder_name(namespace) / SNAPSHOTS)

    def deltas(self, namespace: str) -> SnapshotFolder:
        return folder_at(self._root / _folder_name(namespace) / DELTAS)

    def sweep(self, keep: Collection[str]) -> None:
        """Remove namespaces not in ``keep`` and stores in memory that were not used for a day."""
        kept = {_folder_name(namespace) for namespace in keep}
        others = [entry for entry in self._root.parent.glob(f"{_OWN}*") if entry != self._root]
        mine = [entry for entry in self._root.glob("*") if entry.name not in kept]
        for entry in (*others, *mine):
            with suppress(OSError):  # another process removes it
                if time.time() - newest(entry) > FORGOTTEN_S:
                    shutil.rmtree(entry, ignore_errors=True)


def _is_whole(folder: Path, version: str) -> bool:
    try:
        return check_files(folder).version == version
    except (SnapshotError, FileNotFoundError):  # the latter: another process removes it at this moment
        return False


def _folder_name(namespace: str) -> str:
    return f"n-{folder_segment(namespace)}"


def folder_at(path: Path) -> SnapshotFolder:
    """Return the folder at a path that a ``NodeCache`` of this or another node chose."""
    return SnapshotFolder(path, DELTA_UNUSED_S if path.name == DELTAS else UNUSED_S)
