"""The retrieval service without Ray: it watches the namespaces that readers ask for, and offers their snapshots.

The shared namespace and those that learn are always watched; others from the first question on, until another name
needs their place. Other threads do everything slow, so all methods but ``start`` return at once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Event, Lock, Thread

from retrieval_store.service.interest import NegativeCache
from retrieval_store.service.manifest_feed import CHUNK, Known, ManifestChanges, NamespaceOffer, Status, is_namespace
from retrieval_store.service.namespace_worker import NamespaceWorker, ServiceContext
from retrieval_store.snapshots.snapshot import is_file_name

MOST = 64  # namespaces watched in addition to those that are always watched
IDLE_S = 60.0  # a namespace with text is replaced after this time without a question; one without text, at once
SWEEP_S = 3600.0  # between two removals of folders that were not used for long


class RetrievalService:
    """Watches namespaces of one store; thread-safe.

    Args:
        context: what all namespaces share.
        shared: the namespace whose text is visible to all others.
        live: namespaces that learn.
        changed: called from any thread when an offer has changed.
    """

    def __init__(
        self, context: ServiceContext, shared: str, live: Iterable[str] = (), changed: Callable[[], None] = lambda: None
    ) -> None:
        self._context = context
        self._live = frozenset(live)
        self._permanent = frozenset({shared, *self._live})
        for name in self._permanent:
            if not is_namespace(name):
                raise ValueError(f"namespace {name!r} is not valid; use 1 to 128 of A-Za-z0-9._-, without '.' first")
        self._changed = changed
        self._lock = Lock()
        self._workers: dict[str, NamespaceWorker] = {}
        self._asked: dict[str, float] = {}  # namespace -> when it was last asked for, monotonic seconds
        self._empty = NegativeCache()
        self._stopped = Event()
        self._sweeper = Thread(target=self._sweep, name="retrieval-sweep", daemon=True)
        self._past_counts: Counter[str] = Counter()  # of namespaces that are no longer watched

    def start(self) -> None:
        """Watch the shared namespace and those that learn."""
        self._context.cache.sweep(self._permanent)
        self._sweeper.start()
        with self._lock:
            for name in sorted(self._permanent):
                self._add(name)

    def stop(self) -> None:
        """End all threads, without waiting for them."""
        self._stopped.set()
        for worker in self._all():
            worker.stop()

    def join(self, timeout: float = 5.0) -> None:
        """Wait for the threads after ``stop``."""
        for worker in self._all():
            worker.join(timeout)
        self._sweeper.join(timeout)

    def changes(self, known: Known) -> ManifestChanges:
        """Return what differs from ``known``; its namespaces are watched from now on."""
        offers: dict[str, NamespaceOffer] = {}
        empty: list[str] = []
        for name, versions in known.items():
            worker = self._asked_for(name)
            is_empty = name in self._empty if worker is None else worker.is_empty
            if is_empty:
                empty.append(name)
            if worker is not None and worker.has_looked:
                offer = worker.offer()
                if offer.versions[1] != versions[1] or offer.versions[0] not in ("", versions[0]):
                    offers[name] = offer
        return ManifestChanges(offers, self.status(), tuple(empty))

    def read(self, namespace: str, version: str, file: str, offset: int) -> bytes:
        """Return a chunk of a file of an offered snapshot.

        Raises:
            LookupError: the version is not offered now, or has no such file.
            OSError: it cannot be read.
        """
        worker = self._workers.get(namespace)
        offer = worker.offer() if worker is not None else NamespaceOffer()
        for part in (offer.base, offer.delta):
            if part is not None and part.version == version and is_file_name(file):
                with (Path(part.folder) / file).open("rb") as source:
                    source.seek(offset)
                    return source.read(CHUNK)
        raise LookupError(f"{file} of version {version} of namespace {namespace!r} is not offered")

    def learn(self, namespace: str, texts: Sequence[Sequence[int]]) -> int:
        """Take outputs of a namespace; return how many were refused: it does not learn, or its store is not open."""
        worker = self._workers.get(namespace)
        learner = worker.learner if worker is not None else None
        if learner is None:
            return len(texts)
        learner.learn(texts)
        return 0

    def status(self) -> Status:
        """Return the status of all namespaces that are watched."""
        workers, counts = self._all(), self._past_counts.copy()
        for worker in workers:
            counts.update(worker.counts())
        return Status(namespaces={worker.namespace: worker.status() for worker in workers}, **counts)

    def _all(self) -> list[NamespaceWorker]:
        return list(self._workers.values())

    def _asked_for(self, name: str) -> NamespaceWorker | None:
        """Return the namespace's worker, started if there is room; None if there is no room."""
        now = time.monotonic()
        with self._lock:
            if name in self._workers or (is_namespace(name) and self._has_room(name, now)):
                self._asked[name] = now
                return self._workers.get(name) or self._add(name)
        return None

    def _has_room(self, name: str, now: float) -> bool:
        """Return whether ``name`` may be watched; drop a namespace without text or an idle one if need be."""
        temporary = [other for other in self._workers if other not in self._permanent]
        if len(temporary) < MOST:
            return True
        if name in self._empty:
            return False
        empty = [other for other in temporary if self._workers[other].is_empty]
        oldest = min(empty or temporary, key=lambda other: self._asked[other])
        if empty:
            self._empty.add(oldest)
        elif now - self._asked[oldest] < IDLE_S:
            return False
        self._remove(oldest)
        return True

    def _remove(self, name: str) -> None:
        worker = self._workers.pop(name)
        del self._asked[name]
        worker.stop()
        self._past_counts.update(worker.counts())

    def _sweep(self) -> None:
        while not self._stopped.wait(SWEEP_S):
            self._context.cache.sweep([worker.namespace for worker in self._all()])

    def _add(self, name: str) -> NamespaceWorker:
        self._empty.discard(name)
        worker = self._workers[name] = NamespaceWorker(name, self._context, name in self._live, self._changed)
        worker.start()
        return worker
