"""The retrieval service in a test's own process: small snapshots, a source without Ray, and waiting for threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import numpy as np

from retrieval_store.index.index import Index, Limits
from retrieval_store.service.compaction import Target
from retrieval_store.service.learner import LiveOptions
from retrieval_store.service.manifest_feed import Answer, Known
from retrieval_store.service.namespace_worker import ServiceContext
from retrieval_store.service.reader import Reader
from retrieval_store.service.service import RetrievalService
from retrieval_store.snapshots.cache import NodeCache
from retrieval_store.snapshots.snapshot import Description
from retrieval_store.snapshots.snapshot_writer import write_snapshot
from retrieval_store.stores.base import Store, StoreOptions
from retrieval_store.stores.open import open_store

SHARED = "default"
TARGET = Target("t" * 32, 1000)
LIMITS = Limits(depth=4)
POLL = 0.05  # seconds

Text = Sequence[int]


def build(texts: Sequence[Text], folder: Path, target: Target = TARGET) -> Path:
    """A snapshot of ``texts`` in a folder of its own below ``folder``."""
    place = folder / f"built-{uuid4().hex}"
    write_snapshot(texts, place, Description(tokenizer_hash=target.tokenizer_hash, vocab_size=target.vocab_size))
    return place


def publish(store: Store, texts: Sequence[Text], folder: Path) -> str:
    """Make a snapshot of ``texts`` current; its version."""
    version = store.publish(build(texts, folder))
    store.activate(version)
    return version


def follows(indexes: Sequence[Index], context: Text) -> list[int]:
    """What the first index that knows the context says next, its best token at each depth."""
    for index in indexes:
        found = index.query(np.array(context, np.int32), LIMITS)
        if found is not None and found.tokens:
            return list(found.tokens)
    return []


def eventually(condition: Callable[[], object], within: float = 120.0, pause: float = 0.005) -> None:
    """Wait until ``condition`` holds; fails when it does not ``within`` so many seconds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(pause)


@dataclass
class Direct:
    """A ``Source``: the service without a cluster in between."""

    service: RetrievalService
    is_away: bool = False
    reads: int = 0

    def changes(self, known: Known, timeout: float) -> Answer:
        deadline = time.monotonic() + timeout
        while True:
            self._check()
            answer = self.service.changes(known)
            if answer.offers or time.monotonic() > deadline:
                return answer
            time.sleep(0.005)

    def read(self, namespace: str, version: str, file: str, offset: int) -> bytes:
        self._check()
        self.reads += 1
        return self.service.read(namespace, version, file, offset)

    def learn(self, namespace: str, texts: Sequence[Text]) -> int:
        self._check()
        return self.service.learn(namespace, texts)

    def _check(self) -> None:
        if self.is_away:
            raise TimeoutError("the service is away")


@dataclass
class Node:
    """A service and a reader of it."""

    where: str
    service: RetrievalService
    source: Direct
    reader: Reader

    def store(self, namespace: str = SHARED) -> Store:
        return open_store(self.where, namespace)

    def says(self, context: Text, namespace: str = "") -> list[int]:
        """What drafts of ``namespace`` are told behind ``context``."""
        return follows(self.reader.of(namespace), context)

    def version(self, namespace: str = SHARED) -> str:
        return self.reader.versions(namespace)[0]

    @property
    def problem(self) -> str:
        return self.service.status().namespaces[SHARED].problem

    @property
    def staleness(self) -> float:
        return self.service.status().namespaces[SHARED].staleness


@contextmanager
def running(
    where: str, cache: Path, live: Sequence[str] = (), options: LiveOptions | None = None, target: Target = TARGET
) -> Iterator[Node]:
    """The service on the store ``where``, its threads and a reader's running."""
    store_options = replace(StoreOptions(), tokenizer_hash=target.tokenizer_hash, connect_seconds=0.5, read_seconds=1.0)
    context = ServiceContext(
        lambda namespace: open_store(where, namespace, store_options),
        NodeCache(cache, where),
        target,
        POLL,
        options or LiveOptions(interval=0.05),
    )
    service = RetrievalService(context, SHARED, live)
    source = Direct(service)
    reader = Reader(source, SHARED, target.tokenizer_hash, poll=POLL)
    service.start()
    reader.start()
    try:
        yield Node(where, service, source, reader)
    finally:
        reader.stop()
        service.stop()
        service.join()
