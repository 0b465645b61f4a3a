"""The threads of one namespace in the service: one watches its snapshots; another learns, if the namespace learns.

Each thread has a store of its own, since a store belongs to one thread. Other threads read their results as plain
attributes, which are replaced and never changed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from retrieval_store.errors import StoreError
from retrieval_store.service.compaction import TargetVocabulary
from retrieval_store.service.learner import Learner, LiveOptions
from retrieval_store.service.manifest_feed import NamespaceOffer, NamespaceStatus
from retrieval_store.service.watcher import LocalSnapshot, NamespaceWatcher
from retrieval_store.snapshots.cache import NodeCache
from retrieval_store.stores.base import Store

logger = logging.getLogger(__name__)

HINT_S = 0.05  # pause after a hint, so that a stream of hints is not a stream of questions
LEARN_S = 0.5  # pause between two steps of the learner
NICE = 10  # of the learning thread: building snapshots must not take the processor from serving

OpenStore = Callable[[str], Store]


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """What all namespaces of a service share."""

    open_store: OpenStore  # namespace -> a store of its own
    cache: NodeCache
    target: TargetVocabulary
    poll: float  # seconds between two looks at a store
    live: LiveOptions = field(default_factory=LiveOptions)


class NamespaceWorker:
    """Threads and state of one namespace.

    Args:
        namespace: its name.
        context: what all namespaces share.
        learns: whether it learns live.
        changed: called from its threads when something else is offered.
    """

    def __init__(self, namespace: str, context: ServiceContext, learns: bool, changed: Callable[[], None]) -> None:
        self.namespace = namespace
        self._context = context
        self._learns = learns
        self._changed = changed
        self._stopped = threading.Event()
        self._watcher: NamespaceWatcher | None = None
        self._learner: Learner | None = None
        self._problem = ""  # why there is no store
        self.has_looked = False  # before that, an empty offer does not mean an empty namespace
        self._threads = [threading.Thread(target=self._watch, name=f"watch-{namespace}", daemon=True)]
        if learns:
            self._threads.append(threading.Thread(target=self._learn, name=f"learn-{namespace}", daemon=True))

    def start(self) -> None:
        """Begin to watch."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads as soon as the store lets them; does not wait for it."""
        self._stopped.set()

    def join(self, timeout: float) -> None:
        """Wait for the threads, ``timeout`` seconds each at most."""
        for thread in self._threads:
            thread.join(timeout)

    @property
    def served(self) -> LocalSnapshot | None:
        """The base."""
        watcher = self._watcher
        return watcher.served if watcher is not None else None

    @property
    def learner(self) -> Learner | None:
        """Of a namespace that learns, once its store is open."""
        return self._learner

    @property
    def n_refused(self) -> int:
        """Snapshots that were not taken."""
        watcher = self._watcher
        return watcher.n_refused if watcher is not None else 0

    @property
    def is_empty(self) -> bool:
        """Whether the store was asked and has no snapshot, not even a bad one; never of a namespace that learns."""
        watcher = self._watcher
        if watcher is None or self._learns or not self.has_looked:
            return False
        return watcher.served is None and (watcher.current is None or not watcher.current.version)

    def offer(self) -> NamespaceOffer:
        """The snapshots that readers are to hold now."""
        served, learner = self.served, self._learner
        return NamespaceOffer(served.part if served else None, learner.delta if learner else None)

    def status(self) -> NamespaceStatus:
        """How it is doing."""
        offer, watcher = self.offer(), self._watcher
        base, delta = offer.versions
        return NamespaceStatus(
            version=base,
            delta=delta,
            tokens=sum(part.tokens for part in (offer.base, offer.delta) if part is not None),
            staleness=watcher.staleness if watcher is not None else 0.0,
            problem=watcher.problem if watcher is not None else self._problem,
            learning_problem=self._learner.problem if self._learner is not None else "",
        )

    # -- threads -------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        with contextlib.ExitStack() as stack:
            store = self._opened(stack)
            if store is None:
                return
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
            heard = store.wait(self._context.poll)
        except StoreError:
            self._stopped.wait(self._context.poll)
        except Exception:  # a hint is not worth a thread
            logger.exception("namespace %r: waiting for hints failed", self.namespace)
            self._stopped.wait(self._context.poll)
        else:
            self._stopped.wait(HINT_S if heard else 0)

    def _learn(self) -> None:
        with contextlib.suppress(OSError):  # Linux keeps niceness by thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        with contextlib.ExitStack() as stack:
            store = self._opened(stack)
            if store is None:
                return
            context, name = self._context, self.namespace
            snapshots, deltas = context.cache.snapshots(name), context.cache.deltas(name)
            self._learner = Learner(store, snapshots, deltas, context.target, context.live, self._base)
            while not self._stopped.is_set():
                if self.has_looked and self._guard(self._learner.step):
                    self._changed()
                self._stopped.wait(min(LEARN_S, context.live.interval))

    def _base(self) -> LocalSnapshot | None:
        return self.served

    def _opened(self, stack: contextlib.ExitStack) -> Store | None:
        """The store, as soon as it can be opened; None if the worker is stopped before that."""
        while not self._stopped.is_set():
            try:
                store = self._context.open_store(self.namespace)
            except Exception as error:
                self._problem = str(error)
                logger.warning("namespace %r: the store cannot be opened: %s", self.namespace, error)
                self._stopped.wait(self._context.poll)
            else:
                stack.callback(store.close)
                return store
        return None

    def _guard(self, step: Callable[[], bool | None]) -> bool:
        """Run one step; an unexpected error in it costs this step, not the thread."""
        try:
            return bool(step())
        except Exception:
            logger.exception("namespace %r: a step failed", self.namespace)
            return False
