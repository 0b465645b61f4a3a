"""Where the contract is tested: what a test needs to open a store of each kind, and to damage what is in it."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import redis

from retrieval_store.snapshots.names import folder_segment
from retrieval_store.snapshots.snapshot import MANIFEST, read_manifest
from retrieval_store.stores.base import Store, StoreOptions
from retrieval_store.stores.directory_log import LOG
from retrieval_store.stores.live_text import encode_tokens
from retrieval_store.stores.memory import MemoryStore
from retrieval_store.stores.open import open_store
from retrieval_store.stores.redis_layout import MANIFEST_FIELD, RedisKeys, chunk_field
from tests.support.store_worker import perform

ROOT = Path(__file__).parents[2]
CHUNK = 1000  # bytes; snapshots of tests have several chunks
_NUMBERS = itertools.count()


class Worker:
    """A process that works on stores."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.support.store_worker"]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ}
        )

    def send(self, job: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.communicate()


@dataclass
class Place:
    """One kind of store, with a namespace of its own per test."""

    kind: str
    url: str
    namespace: str
    environment: dict[str, str] = field(default_factory=dict)
    workers: Callable[[], Sequence[Worker]] = tuple
    connect: Callable[[], redis.Redis | redis.RedisCluster] | None = None  # as somebody who may do everything
    opened: list[Store] = field(default_factory=list)

    def open(self, namespace: str | None = None, **options: Any) -> Store:
        """A new store, closed at the end of the test."""
        name = self.namespace if namespace is None else namespace
        store = open_store(self.url, name, StoreOptions(**{"chunk_bytes": CHUNK, **options}))
        self.opened.append(store)
        return store

    def alter(self, version: str, name: str, change: Callable[[bytes], bytes]) -> None:
        """Damage the first chunk of a file, or the manifest, behind the store's back."""
        if self.kind == "memory":
            self._alter_memory(version, name, change)
        elif self.kind == "directory":
            path = Path(self.url) / folder_segment(self.namespace) / "versions" / version / name
            raw = path.read_bytes()
            path.unlink()
            path.write_bytes(change(raw))
        else:
            self._alter_redis(version, name, change)

    def _alter_memory(self, version: str, name: str, change: Callable[[bytes], bytes]) -> None:
        store = self.open()
        assert isinstance(store, MemoryStore)
        kept = store._shared.kept[version]
        if name == MANIFEST:
            kept.raw = change(kept.raw)
        else:
            kept.files[name] = change(kept.files[name])

    def _alter_redis(self, version: str, name: str, change: Callable[[bytes], bytes]) -> None:
        key = RedisKeys(self.namespace).version(version)
        part = MANIFEST_FIELD if name == MANIFEST else chunk_field(name, 0)
        with closing(self.raw()) as client:
            old: Any = client.hget(key, part)
            client.hset(key, part, change(old))

    def alter_entries(self, changed: Mapping[int, bytes]) -> None:
        """Replace entries of the log behind the store's back, counted from 0; ids may change."""
        store = self.open()
        entries = store.entries()
        if self.kind == "memory":
            assert isinstance(store, MemoryStore)
            for number, raw in changed.items():
                store._shared.log[number] = (store._shared.log[number][0], raw)
        elif self.kind == "directory":
            path = Path(self.url) / folder_segment(self.namespace) / LOG
            with closing(sqlite3.connect(path)) as database, database:
                rows = [row for (row,) in database.execute("SELECT id FROM log ORDER BY id")]
                for number, raw in changed.items():
                    database.execute("UPDATE log SET tokens = ? WHERE id = ?", (raw, rows[number]))
        else:
            written = [changed.get(number, encode_tokens(entry.tokens)) for number, entry in enumerate(entries)]
            store.trim(entries[-1].id)
            self._append_raw(written)

    def _append_raw(self, texts: Sequence[bytes]) -> None:
        with closing(self.raw()) as client:
            for text in texts:
                client.xadd(RedisKeys(self.namespace).log, {"tokens": text})

    def raw(self) -> redis.Redis | redis.RedisCluster:
        """A connection behind the store's back."""
        assert self.connect is not None
        return self.connect()

    def together(self, *jobs: tuple[str, Sequence[Any]], **options: Any) -> list[Any]:
        """Do jobs at the same time, in processes if the store allows it, and return their answers."""
        described = [self.job(verb, *arguments, **options) for verb, arguments in jobs]
        if self.kind == "memory":
            with ThreadPoolExecutor(len(jobs)) as pool:
                return list(pool.map(perform, described))
        busy = self.workers()[: len(jobs)]
        for worker, job in zip(busy, described, strict=True):
            worker.send(job)
        answers = [worker.receive() for worker in busy]
        assert all("answer" in answer for answer in answers), answers
        return [answer["answer"] for answer in answers]

    def job(self, verb: str, *arguments: Any, **options: Any) -> dict[str, Any]:
        """A job for a worker."""
        settings = asdict(StoreOptions(**{"chunk_bytes": CHUNK, **options}))
        common = {"url": self.url, "namespace": self.namespace, "environment": self.environment, "options": settings}
        return common | {"verb": verb, "arguments": arguments, "begin": time.time() + 0.05}


def new_namespace() -> str:
    """One that no other test uses."""
    return f"tenant {next(_NUMBERS)}"


def publish(store: Store, folder: Path) -> str:
    version = store.publish(folder)
    assert version == read_manifest(folder).version
    return version


def names(store: Store) -> list[str]:
    return [one.version for one in store.versions()]
