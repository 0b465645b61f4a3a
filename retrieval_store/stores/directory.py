"""Snapshots in a folder of this machine or of a file system that its processes share.

``FOLDER/NAMESPACE/versions/VERSION/``, ``current.json`` (what is current, expires and was) and ``log.sqlite``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

from retrieval_store.errors import StoreUnavailableError
from retrieval_store.snapshots.files import (
    discard,
    private_folder,
    read_blocks,
    sweep_unfinished,
    sync_folder,
    unfinished,
    write_blocks,
)
from retrieval_store.snapshots.names import folder_segment
from retrieval_store.snapshots.snapshot import MANIFEST, FileEntry
from retrieval_store.stores.base import LiveText, Move, Published, StoreOptions
from retrieval_store.stores.common import CommonStore, put_off
from retrieval_store.stores.directory_log import DirectoryLog
from retrieval_store.stores.directory_state import STATE, DirectoryState, changing, read_state
from retrieval_store.stores.live_text import check_limit, encode_tokens
from retrieval_store.stores.pointer import MOST_MOVES, Pointer

_POLL = 0.05  # seconds between looks of ``wait``


class DirectoryStore(CommonStore):
    """See ``Store``."""

    def __init__(self, folder: Path, namespace: str, options: StoreOptions) -> None:
        super().__init__(namespace, folder.absolute().as_uri(), options)
        self._folder = folder.absolute() / folder_segment(namespace)
        self._versions = self._folder / "versions"
        self._log = DirectoryLog(self._folder, self.where, options.read_seconds)
        self._closed = Event()
        self._seen = self._signature()

    def _place(self, version: str) -> str:
        return str(self._versions / version)

    def _begin(self, version: str, raw: bytes) -> str:
        place = unfinished(self._versions, "upload")
        with self._available():
            sweep_unfinished(self._versions, self.options.upload_seconds)
            private_folder(place)
            write_blocks(place / MANIFEST, [raw])
        return str(place)

    def _write(self, place: str, name: str, blocks: Iterator[bytes]) -> None:
        with self._available():
            write_blocks(Path(place) / name, blocks)

    def _renew(self, place: str) -> None:
        with self._available():
            os.utime(place)

    def _commit(self, place: str, version: str, replace: bool, unused: float) -> None:
        target = self._versions / version
        with self._changing() as state:
            if replace or version not in state.versions or not target.is_dir():
                if target.is_dir():
                    discard(target)
                sync_folder(Path(place))
                Path(place).rename(target)
                sync_folder(self._versions)
            state.versions[version] = put_off(state.versions.get(version, 0.0), unused)
        self._abandon(place)

    def _abandon(self, place: str) -> None:
        discard(Path(place))

    def _raw_manifest(self, place: str) -> bytes | None:
        path = Path(place)
        with self._available():
            state = self._state()
            if path.name not in state.versions or path.name in state.expired():
                return None
            with suppress(FileNotFoundError, NotADirectoryError):
                return (path / MANIFEST).read_bytes()
        return None

    def _blocks(self, place: str, name: str, entry: FileEntry) -> Iterator[bytes]:
        with self._available():
            try:
                yield from read_blocks(Path(place) / name)
            except FileNotFoundError:
                if not Path(place).is_dir():  # expired meanwhile
                    raise self._unknown(Path(place).name) from None

    def _deliver(self, place: str, name: str, entry: FileEntry, path: Path) -> None:
        # A link costs nothing, and stays when the store removes the version.
        try:
            os.link(Path(place) / name, path)
        except OSError:  # another file system, or gone
            super()._deliver(place, name, entry, path)
            return
        for _ in self._checked(str(path.parent), name, entry):
            pass

    def _keep(self, version: str, unused: float) -> bool:
        with self._changing() as state:
            if version in state.versions:
                state.versions[version] = put_off(state.versions[version], unused)
            return version in state.versions

    def _retire(self, version: str) -> bool | None:
        with self._changing() as state:
            if version not in state.versions:
                return None
            if version != state.pointer.version:
                state.versions[version] = time.time() + self.options.grace_seconds
            return version == state.pointer.version

    def _state(self) -> DirectoryState:
        with self._available():
            return read_state(self._folder, self.where)

    def _pointer(self) -> Pointer:
        return self._state().pointer

    def _compare_and_set(self, old: Pointer, new: Pointer) -> None:
        with self._changing() as state:
            if state.pointer.revision != old.revision:
                raise self._conflict(old.revision, state.pointer.revision)
            if new.version not in state.versions:
                raise self._unknown(new.version)
            now = time.time()
            if old.version in state.versions:
                state.versions[old.version] = now + self.options.grace_seconds
            state.versions[new.version] = None
            state.pointer = new
            state.moves = [*state.moves, (new.revision, new.version, now)][-MOST_MOVES:]

    @contextmanager
    def _changing(self) -> Iterator[DirectoryState]:
        """The state, locked, without expired versions; their files are gone."""
        with self._available(), changing(self._folder, self.where) as state:
            for version in state.expired():
                del state.versions[version]
                discard(self._versions / version)
            yield state

    def history(self, limit: int = 100) -> list[Move]:
        """See ``Store.history``."""
        check_limit(limit)
        return [Move(*move) for move in self._state().moves[-limit:]]

    def versions(self) -> list[Published]:
        """See ``Store.versions``."""
        state = self._state()
        if state.expired():
            with self._changing() as state:
                pass
        found = []
        for version, expires_at in state.versions.items():
            raw = self._raw_manifest(self._place(version))
            if raw is not None:
                found.append(self._published(version, raw, version == state.pointer.version, expires_at))
        return found

    def wait(self, timeout: float) -> bool:
        """See ``Store.wait``."""
        deadline = time.monotonic() + timeout
        while (now := self._signature()) == self._seen:
            left = deadline - time.monotonic()
            if left <= 0 or self._closed.wait(min(left, _POLL)):
                return False
        self._seen = now
        return True

    def _signature(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(self._folder / STATE), _stamp(self._log.path)]

    def append(self, texts: Sequence[Sequence[int]], limit: int) -> None:
        """See ``Store.append``."""
        check_limit(limit)
        if encoded := [encode_tokens(text) for text in texts]:
            with self._available():
                private_folder(self._folder)
            self._log.append(encoded, limit)

    def entries(self, after: str = "", limit: int = 1000) -> list[LiveText]:
        """See ``Store.entries``."""
        check_limit(limit)
        return self._log.entries(after, limit)

    def trim(self, upto: str) -> None:
        """See ``Store.trim``."""
        self._log.trim(upto)

    def close(self) -> None:
        """See ``Store.close``."""
        self._closed.set()

    @contextmanager
    def _available(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailableError(f"{self.where}: {error.strerror}") from error


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size
