"""Snapshots in a folder of this machine, or of a file system that its processes share.

``FOLDER/NAMESPACE/versions/VERSION/``, ``current.json`` (a ``StoreState``) and ``log.sqlite``.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

import msgspec

from retrieval_store.errors import StoreError, StoreUnavailableError
from retrieval_store.snapshots.files import (
    discard,
    private_folder,
    read_blocks,
    sweep_unfinished,
    sync_folder,
    unfinished,
    write_blocks,
)
from retrieval_store.snapshots.names import folder_segment, is_version
from retrieval_store.snapshots.snapshot import MANIFEST, FileEntry
from retrieval_store.stores.directory_log import DirectoryLog
from retrieval_store.stores.local import LocalStore, StoreState
from retrieval_store.stores.records import StoreOptions

STATE = "current.json"
_POLL = 0.05  # seconds between two looks of ``wait``


class DirectoryStore(LocalStore):
    """A store in a folder. Safe between processes and threads of one machine: each change holds a lock (``flock``)."""

    def __init__(self, folder: Path, namespace: str, options: StoreOptions) -> None:
        super().__init__(namespace, folder.absolute().as_uri(), options)
        self._folder = folder.absolute() / folder_segment(namespace)
        self._versions = self._folder / "versions"
        self._log = DirectoryLog(self._folder, self.where, options.read_seconds)
        self._closed = Event()
        self._seen = self._signature()

    @contextmanager
    def _available(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailableError(f"{self.where}: {error.strerror}") from error

    def _place(self, version: str) -> str:
        return str(self._versions / version)

    def _begin(self, manifest: bytes) -> str:
        place = unfinished(self._versions, "upload")
        with self._available():
            sweep_unfinished(self._versions, self.options.upload_seconds)
            private_folder(place)
            write_blocks(place / MANIFEST, [manifest])
        return str(place)

    def _write(self, place: str, name: str, blocks: Iterator[bytes]) -> None:
        with self._available():
            write_blocks(Path(place) / name, blocks)

    def _renew(self, place: str) -> None:
        with self._available():
            os.utime(place)

    def _move_upload(self, place: str, version: str) -> None:
        target = self._versions / version
        if target.is_dir():
            discard(target)
        sync_folder(Path(place))
        Path(place).rename(target)
        sync_folder(self._versions)

    def _abandon(self, place: str) -> None:
        discard(Path(place))

    def _raw_manifest(self, place: str) -> bytes | None:
        path, state = Path(place), self._state()
        if path.name not in state.versions or path.name in state.expired():
            return None
        with self._available(), suppress(FileNotFoundError, NotADirectoryError):
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

    def _state(self) -> StoreState:
        with self._available():
            try:
                raw = (self._folder / STATE).read_bytes()
            except FileNotFoundError:
                return StoreState()
        try:
            state = msgspec.json.decode(raw, type=StoreState)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreError(f"{self.where}: {STATE} does not decode: {error}") from error
        names = [*state.versions, *state.pointer.before, *filter(None, [state.pointer.version])]
        if not all(is_version(name) for name in names):
            raise StoreError(f"{self.where}: {STATE} names versions that are not 16 hexadecimal digits")
        return state

    @contextmanager
    def _changing(self) -> Iterator[StoreState]:
        """Lock the namespace and yield its state; write it unless the caller raises an error."""
        with self._available():
            private_folder(self._folder)
            lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                state = self._state()
                for version in state.expired():
                    del state.versions[version]
                    discard(self._versions / version)
                yield state
                new = (self._folder / STATE).with_suffix(".new")
                new.unlink(missing_ok=True)  # of a process that was killed
                write_blocks(new, [msgspec.json.encode(state)])
                new.replace(self._folder / STATE)
                sync_folder(self._folder)
            finally:
                os.close(lock)

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while (now := self._signature()) == self._seen:
            left = deadline - time.monotonic()
            if left <= 0 or self._closed.wait(min(left, _POLL)):
                return False
        self._seen = now
        return True

    def _signature(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(self._folder / STATE), _stamp(self._log.path)]

    def _append(self, texts: Sequence[bytes], limit: int) -> None:
        with self._available():
            private_folder(self._folder)
        self._log.append(texts, limit)

    def _entries(self, after: tuple[int, int], limit: int) -> list[tuple[str, bytes]]:
        return self._log.entries(after, limit)

    def _trim(self, upto: tuple[int, int]) -> None:
        self._log.trim(upto)

    def close(self) -> None:
        self._closed.set()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    with suppress(OSError):
        stat = path.stat()
        return stat.st_mtime_ns, stat.st_ino, stat.st_size
    return None
