"""What is done to the store in one go: publish, roll back, publish damage; not when, nor who notices."""

from __future__ import annotations

import signal
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval_store.errors import SnapshotError
from retrieval_store.stores.base import Store, StoreOptions
from retrieval_store.stores.open import open_store
from retrieval_store.stores.redis_layout import RedisKeys, chunk_field

NAMESPACE = "default"


@dataclass(frozen=True)
class Done:
    """What was done to the store."""

    note: str
    at: float  # monotonic seconds at which ``current`` moved


def prepare_worker() -> None:
    """First call in the process that works on the store: brings this module's imports, leaves Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _store(url: str, tokenizer_hash: str) -> Store:
    return open_store(url, NAMESPACE, StoreOptions(tokenizer_hash=tokenizer_hash))


def publish(url: str, folder: Path, tokenizer_hash: str) -> Done:
    """Publish and activate."""
    store, began = _store(url, tokenizer_hash), time.monotonic()
    try:
        version, published = store.publish(folder), time.monotonic()
        store.activate(version)
        moved = time.monotonic()
    finally:
        store.close()
    return Done(f"published in {published - began:.2f} s, activated in {moved - published:.2f} s", moved)


def roll_back(url: str, tokenizer_hash: str) -> Done:
    """Roll back."""
    store = _store(url, tokenizer_hash)
    try:
        return Done(f"current is {store.rollback().version}", time.monotonic())
    finally:
        store.close()


def publish_damaged(url: str, folder: Path, tokenizer_hash: str) -> Done:
    """Publish, cut a file short in the Redis, see that it cannot be activated, and make it current by hand."""
    import redis

    store = _store(url, tokenizer_hash)
    try:
        version = store.publish(folder)
        keys, client = RedisKeys(NAMESPACE), redis.Redis.from_url(url)
        place, piece = keys.version(version), chunk_field("order.bin", 0)
        whole: Any = client.hget(place, piece)
        client.hset(place, piece, whole[: len(whole) // 2])
        try:
            store.activate(version)
        except SnapshotError:
            note = "activate refuses it; made current by hand"
        else:
            raise RuntimeError(f"a damaged snapshot {version} was activated")
        _point_by_hand(client, keys, version)
        client.close()
    finally:
        store.close()
    return Done(note, time.monotonic())


def _point_by_hand(client: Any, keys: RedisKeys, version: str) -> None:
    old, revision, before = (value.decode() for value in client.hmget(keys.current, "version", "revision", "before"))
    moved = {"version": version, "revision": int(revision) + 1, "before": f"{before} {old}", "move": uuid.uuid4().hex}
    client.hset(keys.current, mapping=moved)
    client.publish(keys.hints, "moved")
