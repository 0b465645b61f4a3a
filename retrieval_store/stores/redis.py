"""Snapshots in Redis 6.2 or later: a server, a primary behind Sentinel, or a Cluster.

The commands; ``redis_layout`` has the keys and scripts. Every answer is checked: other programs may write to the same
Redis.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from retrieval_store.errors import StoreError
from retrieval_store.snapshots.names import is_version
from retrieval_store.snapshots.snapshot import FileEntry
from retrieval_store.stores import redis_layout
from retrieval_store.stores.base import LiveText, Move, Published, StoreOptions
from retrieval_store.stores.common import CommonStore
from retrieval_store.stores.live_text import check_limit, decode_tokens, encode_tokens, parse_id
from retrieval_store.stores.pointer import MOST_MOVES, Pointer, decode_move, decode_pointer, encode_move
from retrieval_store.stores.redis_client import RedisClient
from retrieval_store.stores.redis_hints import RedisHints
from retrieval_store.stores.redis_layout import MANIFEST_FIELD, RedisKeys, chunk_field
from retrieval_store.stores.redis_url import RedisAddress

_BATCH = 256  # live texts appended with one command


class RedisStore(CommonStore):
    """See ``Store``. Safe between threads; ``wait`` serves one at a time."""

    def __init__(self, address: RedisAddress, namespace: str, options: StoreOptions) -> None:
        super().__init__(namespace, address.shown, options)
        self._keys = RedisKeys(namespace)
        self._client = RedisClient(address, options)
        self._hints = RedisHints(self._client, self._keys.hints)

    def _place(self, version: str) -> str:
        return self._keys.version(version)

    def _begin(self, version: str, raw: bytes) -> str:
        place = self._keys.upload(uuid.uuid4().hex)
        self._put(place, MANIFEST_FIELD, raw)
        return place

    def _write(self, place: str, name: str, blocks: Iterator[bytes]) -> None:
        for number, block in enumerate(blocks):
            self._put(place, chunk_field(name, number), block)

    def _put(self, place: str, field: str, block: bytes) -> None:
        self._client.run(redis_layout.WRITE, [place], field, block, int(self.options.upload_seconds * 1000))

    def _renew(self, place: str) -> None:
        self._client.call("PEXPIRE", place, int(self.options.upload_seconds * 1000))

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
        answer = self._client.run(redis_layout.RETIRE, keys, version, int(self.options.grace_seconds * 1000))
        return None if answer == 0 else answer == -1

    def _pointer(self) -> Pointer:
        found = self._client.call("HMGET", self._keys.current, "version", "revision", "before")
        if found == [None, None, None]:
            return Pointer()
        version, revision, before = (_text(value) for value in found)
        return decode_pointer(version, revision, before, self.where)

    def _compare_and_set(self, old: Pointer, new: Pointer) -> None:
        keys = [self._keys.current, self._keys.history, self._keys.version(new.version)]
        if old.version:
            keys.append(self._keys.version(old.version))
        move = Move(new.revision, new.version, time.time())
        values = (new.version, new.revision, " ".join(new.before), uuid.uuid4().hex, encode_move(move), MOST_MOVES)
        grace = int(self.options.grace_seconds * 1000)
        answer = self._client.run(redis_layout.MOVE, keys, old.revision, *values, grace, self._keys.hints)
        if answer == 0:
            raise self._unknown(new.version)
        if answer != 1:
            raise self._conflict(old.revision, None)

    def history(self, limit: int = 100) -> list[Move]:
        """See ``Store.history``."""
        check_limit(limit)
        return [decode_move(raw, self.where) for raw in self._client.call("LRANGE", self._keys.history, -limit, -1)]

    def versions(self) -> list[Published]:
        """See ``Store.versions``."""
        names = [_text(name) for name in self._client.call("ZRANGE", self._keys.versions, 0, -1)]
        current = self._pointer().version
        found = ((name, self._describe(name)) for name in names if is_version(name))
        return [
            self._published(name, raw, name == current, None if left < 0 else time.time() + left / 1000)
            for name, (raw, left) in ((name, answer) for name, answer in found if answer)
        ]

    def _describe(self, version: str) -> Any:
        return self._client.run(redis_layout.DESCRIBE, [self._keys.versions, self._keys.version(version)], version)

    def wait(self, timeout: float) -> bool:
        """See ``Store.wait``."""
        return self._hints.wait(timeout)

    def append(self, texts: Sequence[Sequence[int]], limit: int) -> None:
        """See ``Store.append``."""
        check_limit(limit)
        encoded = [encode_tokens(text) for text in texts]
        for first in range(0, len(encoded), _BATCH):
            batch = encoded[first : first + _BATCH]
            self._client.run(redis_layout.APPEND, [self._keys.log], limit, self._keys.hints, *batch)

    def entries(self, after: str = "", limit: int = 1000) -> list[LiveText]:
        """See ``Store.entries``."""
        check_limit(limit)
        start = _behind(parse_id(after, self.where)) if after else "-"
        found = self._client.call("XRANGE", self._keys.log, start, "+", "COUNT", limit)
        return [self._entry(_text(name), fields) for name, fields in found]

    def _entry(self, name: str, fields: dict[bytes, bytes] | None) -> LiveText:
        raw = (fields or {}).get(b"tokens", b"?")
        return LiveText(name, decode_tokens(raw, name, self.where))

    def trim(self, upto: str) -> None:
        """See ``Store.trim``."""
        if upto:
            self._client.call("XTRIM", self._keys.log, "MINID", _behind(parse_id(upto, self.where)))

    def close(self) -> None:
        """See ``Store.close``."""
        self._hints.close()
        self._client.close()


def _behind(key: tuple[int, int]) -> str:
    largest = 2**64 - 1
    return f"{key[0]}-{key[1] + 1}" if key[1] < largest else f"{key[0] + 1}-0"


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
