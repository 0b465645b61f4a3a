"""A place for a store of each kind: opens stores, damages their contents, and works on them from several threads or
processes."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from retrieval_store.errors import ConflictError
from retrieval_store.snapshots.names import folder_segment
from retrieval_store.snapshots.snapshot import MANIFEST, read_manifest
from retrieval_store.stores.base import Store
from retrieval_store.stores.memory import MemoryStore
from retrieval_store.stores.open import open_store
from retrieval_store.stores.records import StoreOptions
from retrieval_store.stores.redis_layout import MANIFEST_FIELD, RedisKeys, chunk_field

CHUNK = 1000  # bytes; snapshots of tests have several chunks
_NUMBERS = itertools.count()
Job = Callable[..., Any]  # a function of a module: it is sent to processes


@dataclass
class StoreKind:
    """One kind of store, with a namespace of its own per test."""

    kind: str
    url: str
    environment: dict[str, str] = field(default_factory=dict)
    connect: Callable[[], redis.Redis | redis.RedisCluster] | None = None  # with all rights
    pool: Executor | None = None
    namespace: str = field(default_factory=lambda: f"tenant {next(_NUMBERS)}")
    opened: list[Store] = field(default_factory=list)

    def open(self, namespace: str | None = None, **options: Any) -> Store:
        """A new store, closed at the end of the test."""
        name = self.namespace if namespace is None else namespace
        self.opened.append(open_store(self.url, name, StoreOptions(**{"chunk_bytes": CHUNK, **options})))
        return self.opened[-1]

    def alter(self, version: str, name: str, change: Callable[[bytes], bytes]) -> None:
        """Damage the first chunk of a file, or the manifest."""
        if self.kind == "memory":
            files = self._shared().files[version]
            files[name] = change(files[name])
        elif self.kind == "directory":
            path = self._folder() / "versions" / version / name
            raw = path.read_bytes()
            path.unlink()  # it may be linked from elsewhere
            path.write_bytes(change(raw))
        else:
            key = RedisKeys(self.namespace).version(version)
            part = MANIFEST_FIELD if name == MANIFEST else chunk_field(name, 0)
            with closing(self.raw()) as client:
                old: Any = client.hget(key, part)
                client.hset(key, part, change(old))

    def age_uploads(self, seconds: int) -> None:
        """Let so much of an unfinished upload's time pass."""
        if self.kind == "memory":
            uploads = self._shared().uploads
            for name in uploads:
                uploads[name] -= seconds
        elif self.kind == "directory":
            for path in self._folder().glob("versions/.*"):
                for one in (*path.iterdir(), path):
                    os.utime(one, times=(at := one.stat().st_mtime - seconds, at))
        else:
            with closing(self.raw()) as client:
                for key in client.scan_iter(RedisKeys(self.namespace).upload("*")):
                    client.pexpire(key, client.pttl(key) - 1000 * seconds)

    def raw(self) -> redis.Redis | redis.RedisCluster:
        """A connection of its own."""
        assert self.connect is not None
        return self.connect()

    def together(self, job: Job, *arguments: tuple[Any, ...]) -> list[Any]:
        """Call ``job(store, *some)`` with each of ``arguments`` at the same time; returns the results."""
        assert self.pool is not None
        calls = [(self.url, self.namespace, self.environment, job, some) for some in arguments]
        return [answer.result() for answer in [self.pool.submit(perform, *call) for call in calls]]

    def _folder(self) -> Path:
        return Path(self.url) / folder_segment(self.namespace)

    def _shared(self) -> Any:
        store = self.open()
        assert isinstance(store, MemoryStore)
        return store._shared


def perform(url: str, namespace: str, environment: dict[str, str], job: Job, arguments: tuple[Any, ...]) -> Any:
    """Open the store, perhaps in another process, and run one job."""
    os.environ.update(environment)
    with closing(open_store(url, namespace, StoreOptions(chunk_bytes=CHUNK))) as store:
        return job(store, *arguments)


def publish_often(store: Store, folder: str, times: int) -> str:
    return {store.publish(Path(folder)) for _ in range(times)}.pop()


def win_moves(store: Store, versions: list[str], wins: int) -> list[int]:
    """Activate alternating versions, each on the revision seen before, until ``wins`` moves were ours."""
    won: list[int] = []
    while len(won) < wins:
        seen = store.current()
        try:
            won.append(store.activate(versions[seen.version == versions[0]], seen.revision).revision)
        except ConflictError:
            time.sleep(0)
    return won


def fetch_into(store: Store, version: str, folder: str) -> str:
    return str(store.fetch(version, Path(folder)))


def append_each(store: Store, texts: list[list[int]]) -> None:
    for text in texts:
        store.append([text], 1000)


def publish(store: Store, folder: Path) -> str:
    version = store.publish(folder)
    assert version == read_manifest(folder).version
    return version


def names(store: Store) -> list[str]:
    return [one.version for one in store.versions()]
