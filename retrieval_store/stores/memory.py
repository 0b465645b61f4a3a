"""Snapshots in the memory of this process: for tests, and for a service that has no other store."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition

import msgspec

from retrieval_store.snapshots.names import segment
from retrieval_store.snapshots.snapshot import MANIFEST, FileEntry
from retrieval_store.stores.live_text import format_id, next_id
from retrieval_store.stores.local import LocalStore, StoreState
from retrieval_store.stores.records import StoreOptions


@dataclass
class _Shared:
    changed: Condition = field(default_factory=Condition)
    n_changes: int = 0
    state: StoreState = field(default_factory=StoreState)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)  # of a version or an upload, by name
    uploads: dict[str, float] = field(default_factory=dict)  # when each expires, seconds since 1970
    log: list[tuple[tuple[int, int], bytes]] = field(default_factory=list)
    last_id: tuple[int, int] = (0, 0)

    def notify(self) -> None:
        self.n_changes += 1
        self.changed.notify_all()


_SHARED: dict[tuple[str, str], _Shared] = {}


class MemoryStore(LocalStore):
    """Shares its contents with the stores of the same name and namespace. Safe between threads."""

    def __init__(self, name: str, namespace: str, options: StoreOptions) -> None:
        super().__init__(namespace, f"memory://{name}", options)
        self._shared = _SHARED.setdefault((name, segment(namespace)), _Shared())
        self._n_seen = self._shared.n_changes
        self._is_closed = False

    @contextmanager
    def _locked(self) -> Iterator[_Shared]:
        """Lock the namespace; remove expired versions and uploads."""
        shared = self._shared
        with shared.changed:
            for version in shared.state.expired():
                del shared.state.versions[version], shared.files[version]
            for place in [place for place, at in shared.uploads.items() if at <= time.time()]:
                del shared.uploads[place], shared.files[place]
            yield shared

    @contextmanager
    def _changing(self) -> Iterator[StoreState]:
        with self._locked() as shared:
            yield shared.state
            shared.notify()

    def _state(self) -> StoreState:
        with self._locked() as shared:
            return msgspec.structs.replace(shared.state, versions=shared.state.versions.copy())

    def _place(self, version: str) -> str:
        return version

    def _begin(self, manifest: bytes) -> str:
        place = f"upload {uuid.uuid4().hex}"
        with self._locked() as shared:
            shared.files[place], shared.uploads[place] = {MANIFEST: manifest}, self._upload_end()
        return place

    def _write(self, place: str, name: str, blocks: Iterator[bytes]) -> None:
        data = b"".join(blocks)
        with self._locked() as shared:
            if place not in shared.uploads:
                raise self._lost()
            shared.files[place][name], shared.uploads[place] = data, self._upload_end()

    def _renew(self, place: str) -> None:
        with self._locked() as shared:
            if place in shared.uploads:
                shared.uploads[place] = self._upload_end()

    def _upload_end(self) -> float:
        return time.time() + self.options.upload_seconds

    def _move_upload(self, place: str, version: str) -> None:
        if self._shared.uploads.pop(place, None) is None:
            raise self._lost()
        self._shared.files[version] = self._shared.files.pop(place)

    def _abandon(self, place: str) -> None:
        with self._shared.changed:
            self._shared.uploads.pop(place, None)
            self._shared.files.pop(place, None)

    def _raw_manifest(self, place: str) -> bytes | None:
        with self._locked() as shared:
            return shared.files.get(place, {}).get(MANIFEST)

    def _blocks(self, place: str, name: str, entry: FileEntry) -> Iterator[bytes]:
        with self._locked() as shared:
            if place not in shared.files:
                raise self._unknown(place)
            data = shared.files[place].get(name, b"")
        step = self.options.chunk_bytes
        return (data[start : start + step] for start in range(0, len(data), step))

    def wait(self, timeout: float) -> bool:
        shared = self._shared
        with shared.changed:
            shared.changed.wait_for(lambda: self._is_closed or shared.n_changes != self._n_seen, timeout)
            heard = shared.n_changes != self._n_seen
            self._n_seen = shared.n_changes
            return heard

    def _append(self, texts: Sequence[bytes], limit: int) -> None:
        shared = self._shared
        with shared.changed:
            for text in texts:
                shared.last_id = next_id(shared.last_id)
                shared.log.append((shared.last_id, text))
            del shared.log[:-limit]
            shared.notify()

    def _entries(self, after: tuple[int, int], limit: int) -> list[tuple[str, bytes]]:
        with self._shared.changed:
            return [(format_id(key), text) for key, text in self._shared.log if key > after][:limit]

    def _trim(self, upto: tuple[int, int]) -> None:
        with self._shared.changed:
            self._shared.log = [one for one in self._shared.log if one[0] > upto]

    def close(self) -> None:
        self._is_closed = True
        with self._shared.changed:
            self._shared.changed.notify_all()
