"""The retrieval service without Ray: the namespaces that readers ask for, the offer of each, and the figures.

The shared namespace and those that learn are always watched; others from the first question on, until another name
needs the room. Everything slow happens in other threads; every method here but ``start`` returns at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Event, Lock, Thread

from retrieval_store.service.interest import NegativeCache
from retrieval_store.service.manifest_feed import CHUNK, Known, ManifestChanges, NamespaceOffer, Status, is_namespace
from retrieval_store.service.namespace_worker import NamespaceWorker, ServiceContext
from retrieval_store.snapshots.snapshot import is_file_name

logger = logging.getLogger(__name__)

MOST = 64  # namespaces watched, besides those that are watched always
IDLE_S = 60.0  # a namespace with text makes room for another after so long without a question; one without, at once
SWEEP_S = 3600.0  # between two sweeps of folders of namespaces without questions for long


class RetrievalService:
    """Thread-safe.

    Args:
        context: what all namespaces share.
        shared: the namespace whose text is visible to all others.
        live: namespaces that learn.
        changed: called from any thread when an offer has changed.

    Raises:
        ValueError: a namespace has a name that ``manifest_feed.NAMESPACE`` does not allow.
    """

    def __init__(
        self, context: ServiceContext, shared: str, live: Iterable[str] = (), changed: Callable[[], None] = lambda: None
    ) -> None:
        self._context = context
        self._live = frozenset(live)
        self._permanent = frozenset({shared, *self._live})
        for name in self._permanent:
            if not is_namespace(name):
                raise ValueError(f"{name!r} is not a valid namespace: 1 to 128 of A-Za-z0-9._- are, without '.' first")
        self._changed = changed
        self._lock = Lock()
        self._workers: dict[str, NamespaceWorker] = {}
        self._asked: dict[str, float] = {}  # namespace -> monotonic seconds
        self._empty = NegativeCache()
        self._stopped = Event()
        self._sweeper = Thread(target=self._sweep, name="retrieval-sweep", daemon=True)
        self._gone = [0] * 5  # counts of namespaces that were dropped, in the order of ``_counts``

    def start(self) -> None:
        """Begin to watch the shared namespace and those that learn."""
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
        """What differs from ``known`` now; the namespaces in it are watched from now on."""
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
        """A chunk of a file of a snapshot that is offered.

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
        """Take outputs of a namespace; returns how many were refused: it does not learn, or its store is not open."""
        worker = self._workers.get(namespace)
        learner = worker.learner if worker is not None else None
        if learner is None:
            return len(texts)
        learner.learn(texts)
        return 0

    def status(self) -> Status:
        """Figures of all namespaces that are watched."""
        workers = self._all()
        counts = [sum(column) for column in zip(self._gone, *map(_counts, workers), strict=True)]
        refused, texts, dropped, folds, compactions = counts
        return Status(
            namespaces={worker.namespace: worker.status() for worker in workers},
            refused=refused,
            live_texts=texts,
            live_dropped=dropped,
            folds=folds,
            compactions=compactions,
        )

    # -- namespaces ----------------------------------------------------------------------------------------------

    def _all(self) -> list[NamespaceWorker]:
        return list(self._workers.values())

    def _asked_for(self, name: str) -> NamespaceWorker | None:
        """The namespace's worker, made if there is room; None if there is none."""
        now = time.monotonic()
        with self._lock:
            if name in self._workers or (is_namespace(name) and self._has_room(name, now)):
                self._asked[name] = now
                return self._workers.get(name) or self._add(name)
        return None

    def _has_room(self, name: str, now: float) -> bool:
        """Whether ``name`` may be watched too, if need be in place of a namespace without text, or else an idle one."""
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
        self._gone = [sum(pair) for pair in zip(self._gone, _counts(worker), strict=True)]

    def _sweep(self) -> None:
        while not self._stopped.wait(SWEEP_S):
            self._context.cache.sweep([worker.namespace for worker in self._all()])

    def _add(self, name: str) -> NamespaceWorker:
        self._empty.discard(name)
        worker = self._workers[name] = NamespaceWorker(name, self._context, name in self._live, self._changed)
        worker.start()
        return worker


def _counts(worker: NamespaceWorker) -> list[int]:
    learner = worker.learner
    if learner is None:
        return [worker.n_refused, 0, 0, 0, 0]
    return [worker.n_refused, learner.n_texts, learner.n_dropped, learner.n_folds, learner.n_compactions]
