"""Snapshots on this node's disk: one folder per store and namespace, shared by all processes of the node.

Knows paths and ages, not what is in a snapshot. What is used is touched now and then; what nobody has touched for a
while is removed, so that the disk is bounded without processes having to know of each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from retrieval_store.snapshots.names import folder_segment
from retrieval_store.stores.transfer import fetched, private_folder

UNUSED_S = 600.0  # a snapshot that nobody has touched for so long goes: readers have long opened its successor
DELTA_UNUSED_S = 60.0  # deltas come every few seconds
TOUCH_S = 20.0  # pause between two touches of what is used
LEFT_OVER_S = 6 * 3600.0  # what is no snapshot: somebody was killed while writing it
FORGOTTEN_S = 24 * 3600.0  # a namespace that nobody has asked for
_OWN = "own-"  # folders of stores in memory
SNAPSHOTS, DELTAS = "snapshots", "deltas"
_BLOCK = 1 << 20  # bytes read at a time
_VERSION = re.compile(r"[0-9a-f]{16}")


class Remembered(msgspec.Struct, frozen=True):
    """What was current when last heard of."""

    version: str
    revision: int


class NamespaceFolder:
    """Snapshots of one namespace of one store, by version.

    Args:
        path: of the folder; it and its parents are made for this user alone, since tenants' texts lie there.
        unused: seconds after which an untouched snapshot is removed.
    """

    def __init__(self, path: Path, unused: float) -> None:
        self.path = path
        self._unused = unused
        self._touched: dict[str, float] = {}  # version -> when this process touched it

    def snapshot(self, version: str) -> Path:
        """Where a version lies, if it is here."""
        return self.path / version

    def has(self, version: str) -> bool:
        """Whether a version is here, with all its files at their sizes."""
        return fetched(self.snapshot(version)) is not None

    def scratch(self) -> Path:
        """A path that does not exist yet, beside the snapshots; ``adopt`` what was written there, or remove it."""
        self.make()
        return Path(tempfile.mkdtemp(prefix="new-", dir=self.path)) / "snapshot"

    def adopt(self, built: Path, version: str) -> Path:
        """Move the snapshot at a ``scratch`` path to where its version belongs; harmless if it is there already."""
        place = self.snapshot(version)
        with contextlib.suppress(OSError):  # not empty: somebody was faster, with the same contents
            built.rename(place)
        self.drop(built)
        return place

    def drop(self, built: Path) -> None:
        """Remove what is left of a ``scratch`` path."""
        shutil.rmtree(built.parent, ignore_errors=True)

    def discard(self, version: str) -> None:
        """Remove a version that turned out to be damaged."""
        shutil.rmtree(self.snapshot(version), ignore_errors=True)

    def make(self) -> None:
        """Make the folder."""
        private_folder(self.path)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """One process of this node at a time; the others wait."""
        self.make()
        with (self.path / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def remember(self, what: Remembered) -> None:
        """Note what is current, for a start without the store; whole or not at all."""
        self.make()
        handle, name = tempfile.mkstemp(prefix="current-", dir=self.path)
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(what))
        Path(name).replace(self.path / "current.json")

    def remembered(self) -> Remembered | None:
        """What was noted last; None if nothing was."""
        try:
            return msgspec.json.decode((self.path / "current.json").read_bytes(), type=Remembered)
        except (OSError, msgspec.DecodeError):
            return None

    def confirmed_at(self) -> float:
        """When the store last confirmed what is remembered, seconds since 1970; 0: never."""
        try:
            return (self.path / "current.json").stat().st_mtime
        except OSError:
            return 0.0

    def confirm(self) -> None:
        """The store has just confirmed what is remembered."""
        with contextlib.suppress(OSError):
            os.utime(self.path / "current.json")

    def touch(self, versions: Collection[str]) -> None:
        """These are in use."""
        now = time.monotonic()
        for version in versions:
            if now - self._touched.get(version, -TOUCH_S) >= TOUCH_S:
                with contextlib.suppress(OSError):
                    os.utime(self.snapshot(version))
                    self._touched[version] = now

    def sweep(self, keep: Collection[str]) -> None:
        """Remove what is not in ``keep`` and has not been touched for a while."""
        self._touched = {version: at for version, at in self._touched.items() if version in keep}
        now = time.time()
        with contextlib.suppress(OSError):
            for entry in list(self.path.iterdir()):
                is_snapshot = _VERSION.fullmatch(entry.name) is not None
                if entry.name in keep or not (is_snapshot or _is_unfinished(entry)):
                    continue
                if now - entry.stat().st_mtime > (self._unused if is_snapshot else LEFT_OVER_S):
                    shutil.rmtree(entry, ignore_errors=True)


class NodeCache:
    """The folders of one store on this node.

    Args:
        root: of all stores.
        store_url: tells stores apart; without a password. "": a store that is in memory, and nobody else's.
    """

    def __init__(self, root: Path, store_url: str) -> None:
        name = hashlib.sha256(store_url.encode()).hexdigest()[:12] if store_url else f"{_OWN}{uuid.uuid4().hex}"
        self._root = root / name

    def snapshots(self, namespace: str) -> NamespaceFolder:
        """A namespace's snapshots."""
        return folder_at(self._root / _folder_name(namespace) / SNAPSHOTS)

    def deltas(self, namespace: str) -> NamespaceFolder:
        """A namespace's deltas."""
        return folder_at(self._root / _folder_name(namespace) / DELTAS)

    def sweep(self, keep: Collection[str]) -> None:
        """Remove namespaces that are not in ``keep``, and stores in memory, of which nothing was used for a day."""
        kept = {_folder_name(namespace) for namespace in keep}
        stores = [entry for entry in _entries(self._root.parent) if entry.name.startswith(_OWN)]
        others = [entry for entry in stores if entry != self._root]
        mine = [entry for entry in _entries(self._root) if entry.name not in kept]
        for entry in (*others, *mine):
            with contextlib.suppress(OSError):  # somebody else removes it
                used = max(child.stat().st_mtime for child in (entry, *entry.rglob("*")))
                if time.time() - used > FORGOTTEN_S:
                    shutil.rmtree(entry, ignore_errors=True)


def _entries(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return list(folder.iterdir())
    return []


def _folder_name(namespace: str) -> str:
    return f"n-{folder_segment(namespace)}"


def folder_at(path: Path) -> NamespaceFolder:
    """The folder at a path that a ``NodeCache`` of this or another node made up."""
    return NamespaceFolder(path, DELTA_UNUSED_S if path.name == DELTAS else UNUSED_S)


def read_through(folder: Path) -> None:
    """Read every file of a snapshot once, so that no query waits for a disk.

    In large blocks, without the interpreter's lock: whoever drafts in this process meanwhile is not held up, as by
    touching a map page after page.
    """
    block = bytearray(_BLOCK)
    for file in folder.iterdir():
        with file.open("rb", buffering=0) as source:
            while source.readinto(block):
                pass


def _is_unfinished(entry: Path) -> bool:
    """A folder that somebody writes, or was writing, a snapshot in; the store's own ones begin with a dot."""
    return entry.name.startswith(("new-", ".")) and entry.is_dir()
