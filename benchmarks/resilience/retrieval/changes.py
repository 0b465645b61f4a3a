"""Changes of the snapshot store, in the order of a round, and what the server must show after each."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.resilience.retrieval.redis_process import RedisProcess
from benchmarks.resilience.retrieval.snapshots import Snapshots
from retrieval_store.errors import SnapshotError
from retrieval_store.stores.base import Store
from retrieval_store.stores.open import open_store
from retrieval_store.stores.records import StoreOptions
from retrieval_store.stores.redis_layout import RedisKeys, chunk_field

NAMESPACE = "default"
NOTHING = "nothing"  # the phases that the others are compared with


@dataclass(frozen=True)
class Done:
    """A change that was made."""

    note: str
    at: float  # monotonic seconds at which ``current`` moved, or the Redis started or died


@dataclass(frozen=True)
class Change:
    """What is done at the beginning of a phase, and what must be seen at its end.

    Args:
        name: as tables show it.
        act: done in this process, if it needs no work.
        work: function and arguments for the other process.
        version: served at the end; empty: the same as before.
        problem: word that ``retrieval_problem`` must hold; empty: there is none.
        refused: snapshots refused in this phase.
    """

    name: str
    act: Callable[[], None] | None = None
    work: tuple[Any, ...] = ()
    version: str = ""
    problem: str = ""
    refused: int = 0


def changes_of_a_round(redis: RedisProcess, snapshots: Snapshots) -> list[Change]:
    """All changes, in their order."""
    url, folder, key, version = redis.url, snapshots.folder, snapshots.tokenizer_hash, snapshots.versions
    back = (roll_back, url, key)
    damaged = (publish_damaged, url, folder / "damaged", key)
    return [
        Change(NOTHING),
        Change("publish A", work=(publish, url, folder / "A", key), version=version["A"]),
        Change("publish B", work=(publish, url, folder / "B", key), version=version["B"]),
        Change("roll back to A", work=back, version=version["A"]),
        Change(NOTHING),
        Change("kill -9 Redis", act=redis.kill, problem="away"),
        Change("restart it empty", act=redis.start, problem="no snapshot"),
        Change("publish B again", work=(publish, url, folder / "B", key), version=version["B"]),
        Change("damaged", work=damaged, problem=version["damaged"], refused=1),
        Change("foreign", work=(publish, url, folder / "foreign", ""), problem=version["foreign"], refused=1),
        Change("roll back to B", work=back, version=version["B"]),
        Change(NOTHING),
    ]


def prepare_worker() -> None:
    """First call in the process that changes the store: imports this module, leaves Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def publish(url: str, folder: Path, tokenizer_hash: str) -> Done:
    """Publish the snapshot in ``folder`` and make it current."""
    with closing(_store(url, tokenizer_hash)) as store:
        began = time.monotonic()
        version, published = store.publish(folder), time.monotonic()
        store.activate(version)
        moved = time.monotonic()
    return Done(f"published in {published - began:.2f} s, activated in {moved - published:.2f} s", moved)


def roll_back(url: str, tokenizer_hash: str) -> Done:
    """Make the version before the current one current."""
    with closing(_store(url, tokenizer_hash)) as store:
        return Done(f"current is {store.rollback().version}", time.monotonic())


def publish_damaged(url: str, folder: Path, tokenizer_hash: str) -> Done:
    """Publish, cut a file short in the Redis, check that ``activate`` refuses it, and make it current by hand.

    Raises:
        RuntimeError: ``activate`` accepted it.
    """
    import redis

    with closing(_store(url, tokenizer_hash)) as store, closing(redis.Redis.from_url(url)) as client:
        version = store.publish(folder)
        keys = RedisKeys(NAMESPACE)
        place, piece = keys.version(version), chunk_field("order.bin", 0)
        whole: Any = client.hget(place, piece)
        client.hset(place, piece, whole[: len(whole) // 2])
        try:
            store.activate(version)
        except SnapshotError:
            _make_current(client, keys, version)
        else:
            raise RuntimeError(f"a damaged snapshot {version} was activated")
    return Done("activate refuses it; made current by hand", time.monotonic())


def _make_current(client: Any, keys: RedisKeys, version: str) -> None:
    old, revision, before = (value.decode() for value in client.hmget(keys.current, "version", "revision", "before"))
    moved = {"version": version, "revision": int(revision) + 1, "before": f"{before} {old}", "move": uuid.uuid4().hex}
    client.hset(keys.current, mapping=moved)
    client.publish(keys.hints, "moved")


def _store(url: str, tokenizer_hash: str) -> Store:
    return open_store(url, NAMESPACE, StoreOptions(tokenizer_hash=tokenizer_hash))
