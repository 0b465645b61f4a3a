"""The threads of one namespace in the service: one watches its snapshots; another learns, if the namespace learns.

Each thread has a store of its own. Other threads read their results from attributes, whose values never change.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from retrieval_store.service.compaction import TargetVocabulary
from retrieval_store.service.learner import Learner, LiveOptions
from retrieval_store.service.manifest_feed import NamespaceOffer, NamespaceStatus
from retrieval_store.service.watcher import LocalSnapshot, NamespaceWatcher
from retrieval_store.snapshots.cache import NodeCache
from retrieval_store.stores.base import Store

logger = logging.getLogger(__name__)

HINT_S = 0.05  # pause after a hint, so that many hints do not become as many questions to the store
LEARN_S = 0.5  # pause between two steps of the learner
NICE = 10  # of the learning thread: writing snapshots must not slow down serving


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """What all namespaces of a service share."""

    open_store: Callable[[str], Store]  # opens a store of its own for a namespace
    cache: NodeCache
    target: TargetVocabulary
    poll: float  # seconds between two questions to a store
    live: LiveOptions = field(default_factory=LiveOptions)


class NamespaceWorker:
    """Threads and state of one namespace; its threads call ``changed`` when the offer has changed."""

    def __init__(self, namespace: str, context: ServiceContext, learns: bool, changed: Callable[[], None]) -> None:
        self.namespace = namespace
        self._context = context
        self._learns = learns
        self._changed = changed
        self._stopped = threading.Event()
        self._watcher: NamespaceWatcher | None = None  # until the store is open
        self._problem = ""  # why the store is not open
        self.learner: Learner | None = None  # of a namespace that learns, once the store is open
        self.has_looked = False  # before that, an empty offer does not mean an empty namespace
        jobs = {"watch": self._watch} | ({"learn": self._learn} if learns else {})
        self._threads = [
            threading.Thread(target=self._run, args=(job,), name=f"{name}-{namespace}", daemon=True)
            for name, job in jobs.items()
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads as soon as the store answers; does not wait for them."""
        self._stopped.set()

    def join(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for each thread."""
        for thread in self._threads:
            thread.join(timeout)

    @property
    def served(self) -> LocalSnapshot | None:
        return self._watcher.served if self._watcher is not None else None

    @property
    def is_empty(self) -> bool:
        """Whether the store has no snapshot, not even a bad one; never of a namespace that learns."""
        watcher = self._watcher
        if watcher is None or self._learns or not self.has_looked:
            return False
        return watcher.served is None and (watcher.current is None or not watcher.current.version)

    def offer(self) -> NamespaceOffer:
        """Return the snapshots that readers should hold now."""
        served, learner = self.served, self.learner
        return NamespaceOffer(served.part if served else None, learner.delta if learner else None)

    def status(self) -> NamespaceStatus:
        offer, watcher = self.offer(), self._watcher
        base, delta = offer.versions
        return NamespaceStatus(
            version=base,
            delta=delta,
            tokens=sum(part.tokens for part in (offer.base, offer.delta) if part is not None),
            staleness=watcher.staleness if watcher is not None else 0.0,
            problem=watcher.problem if watcher is not None else self._problem,
            learning_problem=self.learner.problem if self.learner is not None else "",
        )

    def counts(self) -> Counter[str]:
        """Return the counts of ``Status`` for this namespace, by field."""
        counts = Counter(refused=self._watcher.n_refused if self._watcher is not None else 0)
        if (learner := self.learner) is not None:
            counts.update(live_texts=learner.n_texts, live_dropped=learner.n_dropped)
            counts.update(folds=learner.n_folds, compactions=learner.n_compactions)
        return counts

    # -- threads -------------------------------------------------------------------------------------------------

    def _run(self, job: Callable[[Store], None]) -> None:
        """Open a store, retrying until it works, and run ``job`` with it."""
        while not self._stopped.is_set():
            try:
                store = self._context.open_store(self.namespace)
            except Exception as error:
                self._problem = str(error)
                logger.warning("namespace %r: the store cannot be opened: %s", self.namespace, error)
                self._stopped.wait(self._context.poll)
            else:
                with contextlib.closing(store):
                    job(store)

    def _watch(self, store: Store) -> None:
        context = self._context
        watcher = NamespaceWatcher(store, context.cache.snapshots(self.namespace), context.target.tokenizer_hash)
        self._guard(watcher.restore)
        self._watcher = watcher
        if watcher.served is not None:
            self.has_looked = True
            self._changed()
        while not self._stopped.is_set():
            changed = self._guard(watcher.look)
            if changed or not self.has_looked:
                self.has_looked = True
                self._changed()
            self._pause(store)

    def _pause(self, store: Store) -> None:
        """Wait until the store may have changed, or it is time to poll."""
        try:
            pause = HINT_S if store.wait(self._context.poll) else 0.0
        except Exception:  # must not end the thread: polling works without hints
            logger.exception("namespace %r: waiting for hints failed", self.namespace)
            pause = self._context.poll
        self._stopped.wait(pause)

    def _learn(self, store: Store) -> None:
        with contextlib.suppress(OSError):  # on Linux, each thread has a niceness
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        context = self._context
        self.learner = Learner(store, context.cache, context.target, context.live, lambda: self.served)
        while not self._stopped.is_set():
            if self.has_looked and self._guard(self.learner.step):
                self._changed()
            self._stopped.wait(min(LEARN_S, context.live.interval))

    def _guard(self, step: Callable[[], bool | None]) -> bool:
        """Run one step; an unexpected error is logged and does not end the thread."""
        try:
            return bool(step())
        except Exception:
            logger.exception("namespace %r: a step failed", self.namespace)
            return False
