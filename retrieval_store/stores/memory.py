"""Snapshots in the memory of this process: for tests, and for a service that has no other store.

Stores that are opened with the same name and namespace share everything. Safe between threads.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from retrieval_store.snapshots.names import segment
from retrieval_store.snapshots.snapshot import FileEntry
from retrieval_store.stores.base import LiveText, Move, Published, StoreOptions
from retrieval_store.stores.common import CommonStore, put_off
from retrieval_store.stores.live_text import check_limit, decode_tokens, encode_tokens, next_id, parse_id
from retrieval_store.stores.pointer import MOST_MOVES, Pointer

_SLICE = 0.5  # seconds after which a waiting thread sees that its store was closed


@dataclass
class _Kept:
    raw: bytes  # manifest
    files: dict[str, bytes] = field(default_factory=dict)
    expires_at: float | None = None


@dataclass
class _Shared:
    changed: threading.Condition = field(default_factory=threading.Condition)
    changes: int = 0
    pointer: Pointer = field(default_factory=Pointer)
    moves: list[Move] = field(default_factory=list)
    kept: dict[str, _Kept] = field(default_factory=dict)  # version or upload -> contents
    log: list[tuple[tuple[int, int], bytes]] = field(default_factory=list)
    last_id: tuple[int, int] = (0, 0)

    def notify(self) -> None:
        self.changes += 1
        self.changed.notify_all()


_SHARED: dict[tuple[str, str], _Shared] = {}


class MemoryStore(CommonStore):
    """See ``Store``."""

    def __init__(self, name: str, namespace: str, options: StoreOptions) -> None:
        super().__init__(namespace, f"memory://{name}", options)
        self._shared = _SHARED.setdefault((name, segment(namespace)), _Shared())
        self._heard = self._shared.changes
        self._closed = False

    def _place(self, version: str) -> str:
        return version

    def _begin(self, version: str, raw: bytes) -> str:
        place = f"upload {uuid.uuid4().hex}"
        with self._shared.changed:
            self._sweep()
            self._shared.kept[place] = _Kept(raw, expires_at=time.time() + self.options.upload_seconds)
        return place

    def _write(self, place: str, name: str, blocks: Iterator[bytes]) -> None:
        data = b"".join(blocks)
        with self._shared.changed:
            self._sweep()
            if place not in self._shared.kept:
                raise self._lost()
            upload = self._shared.kept[place]
            upload.files[name] = data
            upload.expires_at = time.time() + self.options.upload_seconds

    def _renew(self, place: str) -> None:
        with self._shared.changed:
            if place in self._shared.kept:
                self._shared.kept[place].expires_at = time.time() + self.options.upload_seconds

    def _commit(self, place: str, version: str, replace: bool, unused: float) -> None:
        with self._shared.changed:
            self._sweep()
            upload = self._shared.kept.pop(place, None)
            if upload is None:
                raise self._lost()
            upload.expires_at = 0.0
            kept = self._shared.kept.setdefault(version, upload)
            if replace:
                kept.raw, kept.files = upload.raw, upload.files
            kept.expires_at = put_off(kept.expires_at, unused)
            self._shared.notify()

    def _abandon(self, place: str) -> None:
        self._shared.kept.pop(place, None)

    def _raw_manifest(self, place: str) -> bytes | None:
        with self._shared.changed:
            self._sweep()
            return self._shared.kept[place].raw if place in self._shared.kept else None

    def _blocks(self, place: str, name: str, entry: FileEntry) -> Iterator[bytes]:
        with self._shared.changed:
            self._sweep()
            if place not in self._shared.kept:
                raise self._unknown(place)
            data = self._shared.kept[place].files.get(name, b"")
        step = self.options.chunk_bytes
        return (data[start : start + step] for start in range(0, len(data), step))

    def _keep(self, version: str, unused: float) -> bool:
        with self._shared.changed:
            self._sweep()
            if version not in self._shared.kept:
                return False
            kept = self._shared.kept[version]
            kept.expires_at = put_off(kept.expires_at, unused)
            return True

    def _retire(self, version: str) -> bool | None:
        with self._shared.changed:
            self._sweep()
            if version not in self._shared.kept:
                return None
            if version != self._shared.pointer.version:
                self._shared.kept[version].expires_at = time.time() + self.options.grace_seconds
            return version == self._shared.pointer.version

    def _pointer(self) -> Pointer:
        return self._shared.pointer

    def _compare_and_set(self, old: Pointer, new: Pointer) -> None:
        shared = self._shared
        with shared.changed:
            self._sweep()
            if shared.pointer.revision != old.revision:
                raise self._conflict(old.revision, shared.pointer.revision)
            if new.version not in shared.kept:
                raise self._unknown(new.version)
            if old.version in shared.kept:
                shared.kept[old.version].expires_at = time.time() + self.options.grace_seconds
            shared.kept[new.version].expires_at = None
            shared.pointer = new
            shared.moves = [*shared.moves, Move(new.revision, new.version, time.time())][-MOST_MOVES:]
            shared.notify()

    def _sweep(self) -> None:
        now = time.time()
        for place, kept in list(self._shared.kept.items()):
            if kept.expires_at is not None and kept.expires_at <= now:
                del self._shared.kept[place]

    def history(self, limit: int = 100) -> list[Move]:
        """See ``Store.history``."""
        check_limit(limit)
        return self._shared.moves[-limit:]

    def versions(self) -> list[Published]:
        """See ``Store.versions``."""
        with self._shared.changed:
            self._sweep()
            kept = [(place, one) for place, one in self._shared.kept.items() if not place.startswith("upload")]
            current = self._shared.pointer.version
        return [self._published(name, one.raw, name == current, one.expires_at) for name, one in kept]

    def wait(self, timeout: float) -> bool:
        """See ``Store.wait``."""
        deadline = time.monotonic() + timeout
        with self._shared.changed:
            while self._shared.changes == self._heard and not self._closed:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._shared.changed.wait(min(left, _SLICE))
            heard = self._shared.changes != self._heard
            self._heard = self._shared.changes
            return heard

    def append(self, texts: Sequence[Sequence[int]], limit: int) -> None:
        """See ``Store.append``."""
        check_limit(limit)
        encoded = [encode_tokens(text) for text in texts]
        shared = self._shared
        with shared.changed:
            for raw in encoded:
                shared.last_id = next_id(shared.last_id)
                shared.log.append((shared.last_id, raw))
            del shared.log[:-limit]
            if encoded:
                shared.notify()

    def entries(self, after: str = "", limit: int = 1000) -> list[LiveText]:
        """See ``Store.entries``."""
        check_limit(limit)
        behind = parse_id(after, self.where)
        with self._shared.changed:
            found = [(key, raw) for key, raw in self._shared.log if key > behind][:limit]
        names = [f"{key[0]}-{key[1]}" for key, _ in found]
        return [
            LiveText(name, decode_tokens(raw, name, self.where)) for name, (_, raw) in zip(names, found, strict=True)
        ]

    def trim(self, upto: str) -> None:
        """See ``Store.trim``."""
        last = parse_id(upto, self.where)
        with self._shared.changed:
            self._shared.log = [one for one in self._shared.log if one[0] > last]

    def close(self) -> None:
        """See ``Store.close``."""
        self._closed = True
        with self._shared.changed:
            self._shared.changed.notify_all()
