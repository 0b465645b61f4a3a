"""Snapshots in Redis 6.2 or later: a server, a primary behind Sentinel, or a Cluster.

``redis_layout`` has the keys and the scripts. Every answer is checked: other programs may write to the same Redis.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from retrieval_store.errors import StoreError
from retrieval_store.snapshots.names import is_version
from retrieval_store.snapshots.snapshot import FileEntry
from retrieval_store.stores import redis_layout
from retrieval_store.stores.base import Store
from retrieval_store.stores.live_text import format_id
from retrieval_store.stores.records import MOST_MOVES, Move, Pointer, Published, StoreOptions
from retrieval_store.stores.redis_client import RedisClient
from retrieval_store.stores.redis_hints import RedisHints
from retrieval_store.stores.redis_layout import MANIFEST_FIELD, RedisKeys, chunk_field
from retrieval_store.stores.redis_url import RedisAddress

_BATCH = 256  # live texts appended with one command


class RedisStore(Store):
    """A store in Redis. Safe between threads, but only one at a time may call ``wait``."""

    def __init__(self, address: RedisAddress, namespace: str, options: StoreOptions) -> None:
        super().__init__(namespace, address.shown, options)
        self._keys = RedisKeys(namespace)
        self._client = RedisClient(address, options)
        self._hints = RedisHints(self._client, self._keys.hints)
        self._grace_ms, self._upload_ms = int(options.grace_seconds * 1000), int(options.upload_seconds * 1000)

    def _place(self, version: str) -> str:
        return self._keys.version(version)

    def _begin(self, manifest: bytes) -> str:
        place = self._keys.upload(uuid.uuid4().hex)
        self._client.run(redis_layout.WRITE, [place], MANIFEST_FIELD, manifest, self._upload_ms)
        return place

    def _write(self, place: str, name: str, blocks: Iterator[bytes]) -> None:
        for number, block in enumerate(blocks):
            self._client.run(redis_layout.WRITE, [place], chunk_field(name, number), block, self._upload_ms)

    def _renew(self, place: str) -> None:
        self._client.call("PEXPIRE", place, self._upload_ms)

    def _commit(self, place: str, version: str, replace: bool, unused: float) -> None:
        keys = [place, self._keys.version(version), self._keys.versions]
        values = (version, int(replace), self._keys.hints, int(unused * 1000))
        if not self._client.run(redis_layout.COMMIT, keys, *values):
            raise self._lost()

    def _abandon(self, place: str) -> None:
        with suppress(StoreError):  # otherwise it expires
            self._client.call("UNLINK", place)

    def _raw_manifest(self, place: str) -> bytes | None:
        raw: bytes | None = self._client.call("HGET", place, MANIFEST_FIELD)
        return raw

    def _blocks(self, place: str, name: str, entry: FileEntry) -> Iterator[bytes]:
        size = number = 0
        while size < entry.bytes:
            block = self._client.call("HGET", place, chunk_field(name, number))
            if not block:
                break
            yield block
            size, number = size + len(block), number + 1
        if size < entry.bytes and not self._client.call("EXISTS", place):
            raise self._unknown(place.rpartition(":")[2])

    def _keep(self, version: str, unused: float) -> bool:
        return bool(self._client.run(redis_layout.KEEP, [self._keys.version(version)], int(unused * 1000)))

    def _retire(self, version: str) -> bool | None:
        keys = [self._keys.current, self._keys.version(version)]
        answer = self._client.run(redis_layout.RETIRE, keys, version, self._grace_ms)
        return None if answer == 0 else answer == -1

    def _pointer(self) -> Pointer:
        found = self._client.call("HMGET", self._keys.current, "version", "revision", "before")
        if found == [None, None, None]:
            return Pointer()
        version, revision, before = (_text(value) for value in found)
        if not (revision.isascii() and revision.isdigit() and len(revision) < 19):
            raise StoreError(f"{self.where}: the revision of current is {revision[:40]!r}, not a number")
        if not all(is_version(name) for name in (version, *before.split())):
            raise StoreError(f"{self.where}: current does not decode: {version[:40]!r} after {before[:80]!r}")
        return Pointer(version, int(revision), tuple(before.split()))

    def _compare_and_set(self, old: Pointer, new: Pointer) -> None:
        keys = [self._keys.current, self._keys.history, self._keys.version(new.version)]
        if old.version:
            keys.append(self._keys.version(old.version))
        move = msgspec.json.encode(Move(new.revision, new.version, time.time()))
        values = (new.version, new.revision, " ".join(new.before), uuid.uuid4().hex, move, MOST_MOVES)
        answer = self._client.run(redis_layout.MOVE, keys, old.revision, *values, self._grace_ms, self._keys.hints)
        if answer == 0:
            raise self._unknown(new.version)
        if answer != 1:
            raise self._conflict(old.revision)

    def _history(self, limit: int) -> list[Move]:
        found = self._client.call("LRANGE", self._keys.history, -limit, -1)
        try:
            return [msgspec.json.decode(raw, type=Move) for raw in found]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreError(f"{self.where}: the history does not decode: {error}") from error

    def versions(self) -> list[Published]:
        names = [_text(name) for name in self._client.call("ZRANGE", self._keys.versions, 0, -1)]
        current = self._pointer().version
        found = []
        for name in filter(is_version, names):
            keys = [self._keys.versions, self._keys.version(name)]
            if answer := self._client.run(redis_layout.DESCRIBE, keys, name):
                raw, left = answer
                expires_at = None if left < 0 else time.time() + left / 1000
                found.append(self._published(name, raw, name == current, expires_at))
        return found

    def wait(self, timeout: float) -> bool:
        return self._hints.wait(timeout)

    def _append(self, texts: Sequence[bytes], limit: int) -> None:
        for first in range(0, len(texts), _BATCH):
            batch = texts[first : first + _BATCH]
            self._client.run(redis_layout.APPEND, [self._keys.log], limit, self._keys.hints, *batch)

    def _entries(self, after: tuple[int, int], limit: int) -> list[tuple[str, bytes]]:
        found = self._client.call("XRANGE", self._keys.log, _behind(after), "+", "COUNT", limit)
        return [(_text(name), (fields or {}).get(b"tokens", b"?")) for name, fields in found]

    def _trim(self, upto: tuple[int, int]) -> None:
        self._client.call("XTRIM", self._keys.log, "MINID", _behind(upto))

    def close(self) -> None:
        self._hints.close()
        self._client.close()


def _behind(key: tuple[int, int]) -> str:
    return format_id((key[0], key[1] + 1) if key[1] < 2**64 - 1 else (key[0] + 1, 0))


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
