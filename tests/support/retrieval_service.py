"""The retrieval service in a test's own process, with small snapshots and a source without Ray."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import numpy as np

from retrieval_store.index.index import Index, Limits
from retrieval_store.service.compaction import TargetVocabulary
from retrieval_store.service.learner import LiveOptions
from retrieval_store.service.manifest_feed import Known, ManifestChanges
from retrieval_store.service.namespace_worker import ServiceContext
from retrieval_store.service.reader import Reader
from retrieval_store.service.service import RetrievalService
from retrieval_store.snapshots.cache import NodeCache
from retrieval_store.snapshots.snapshot import Description
from retrieval_store.snapshots.snapshot_writer import write_snapshot
from retrieval_store.stores.base import Store
from retrieval_store.stores.open import open_store
from retrieval_store.stores.records import StoreOptions
from tests.support.waiting import LIMIT_S, wait_until

SHARED = "default"
TARGET = TargetVocabulary("t" * 32, 1000)
POLL = 0.05  # seconds

Text = Sequence[int]


def build(texts: Sequence[Text], folder: Path, target: TargetVocabulary = TARGET) -> Path:
    """Write a snapshot of ``texts`` to a new folder in ``folder``."""
    place = folder / f"built-{uuid4().hex}"
    write_snapshot(texts, place, Description(tokenizer_hash=target.tokenizer_hash, vocab_size=target.vocab_size))
    return place


def publish(store: Store, texts: Sequence[Text], folder: Path) -> str:
    """Make a snapshot of ``texts`` current; returns its version."""
    version = store.publish(build(texts, folder))
    store.activate(version)
    return version


def follows(indexes: Sequence[Index], context: Text) -> list[int]:
    """The best token at each depth after ``context``, of the first index that knows it."""
    for index in indexes:
        found = index.query(np.array(context, np.int32), Limits(depth=4))
        if found is not None and found.tokens:
            return list(found.tokens)
    return []


@dataclass
class Direct:
    """A ``ManifestSource``: the service without a cluster in between."""

    service: RetrievalService
    is_away: bool = False
    n_reads: int = 0
    n_polls: int = 0

    def changes(self, known: Known, timeout: float) -> ManifestChanges:
        self.n_polls += 1
        deadline = time.monotonic() + timeout
        while True:
            self._check()
            answer = self.service.changes(known)
            if answer.offers or time.monotonic() > deadline:
                return answer
            time.sleep(0.005)

    def read(self, namespace: str, version: str, file: str, offset: int) -> bytes:
        self._check()
        self.n_reads += 1
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

    def drafts(self, context: Text, namespace: str = "") -> list[int]:
        """The tokens that drafts of ``namespace`` get after ``context``."""
        return follows(self.reader.of(namespace), context)

    def wait_for_drafts(self, context: Text, tokens: Text, namespace: str = "") -> None:
        wait_until(lambda: self.drafts(context, namespace) == list(tokens))

    def version(self, namespace: str = SHARED) -> str:
        return self.reader.versions(namespace)[0]

    def publish(self, texts: Sequence[Text], folder: Path, namespace: str = SHARED) -> str:
        """Publish, and wait until drafts get it; returns the version."""
        version = publish(self.store(namespace), texts, folder)
        wait_until(lambda: self.reader.of(namespace) and self.version(namespace) == version)
        return version

    def poll(self, times: int = 3) -> None:
        """Let the reader ask the service some more times."""
        target = self.source.n_polls + times
        wait_until(lambda: self.source.n_polls >= target)

    @property
    def problem(self) -> str:
        return self.service.status().namespaces[SHARED].problem

    @property
    def staleness(self) -> float:
        return self.service.status().namespaces[SHARED].staleness


@contextmanager
def running(where: str, cache: Path, live: Sequence[str] = (), options: LiveOptions | None = None) -> Iterator[Node]:
    """The service on the store ``where`` and a reader, with their threads."""
    patient = replace(StoreOptions(), connect_seconds=LIMIT_S, read_seconds=LIMIT_S)
    store_options = replace(patient, tokenizer_hash=TARGET.tokenizer_hash)
    context = ServiceContext(
        lambda namespace: open_store(where, namespace, store_options),
        NodeCache(cache, where),
        TARGET,
        POLL,
        options or LiveOptions(interval=0.05),
    )
    service = RetrievalService(context, SHARED, live)
    source = Direct(service)
    reader = Reader(source, SHARED, TARGET.tokenizer_hash, poll=POLL)
    service.start()
    reader.start()
    try:
        yield Node(where, service, source, reader)
    finally:
        reader.stop()
        service.stop()
        service.join()
