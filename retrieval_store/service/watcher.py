"""Watches ``current`` of one namespace, and copies the snapshot it points at to this node's disk, verified.

Only another verified snapshot replaces the one that is served. It stays when the new one is damaged or foreign, while
the store is away, and when the store comes back empty.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from retrieval_store.errors import SnapshotError, StoreError, StoreUnavailableError
from retrieval_store.service.backoff import log_problem, pause_after
from retrieval_store.service.manifest_feed import OfferedSnapshot
from retrieval_store.snapshots.cache import SnapshotFolder
from retrieval_store.snapshots.files import read_through
from retrieval_store.snapshots.snapshot import Manifest, check_tokenizer
from retrieval_store.snapshots.snapshot_index import open_snapshot
from retrieval_store.stores.base import Store
from retrieval_store.stores.records import Current

logger = logging.getLogger(__name__)

RETRY_S = 30.0  # before a snapshot that could not be used is fetched again; doubles with every failure
RETRY_MOST_S = 600.0


@dataclass(frozen=True, slots=True)
class LocalSnapshot:
    """A snapshot on this node that readers are offered."""

    part: OfferedSnapshot
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class _Refused:
    """The current version that could not be used."""

    version: str = ""
    problem: str = ""
    failures: int = 0
    again_at: float = 0.0  # when it is tried again, monotonic seconds


class NamespaceWatcher:
    """Watches one namespace. Belongs to one thread, as its store does; any thread may read its attributes."""

    def __init__(self, store: Store, folder: SnapshotFolder, tokenizer_hash: str) -> None:
        self._store = store
        self._folder = folder
        self._tokenizer_hash = tokenizer_hash
        self._confirmed_at = time.time()
        self._refused = _Refused()
        self._name = f"namespace {store.namespace!r} of {store.url}"
        self.served: LocalSnapshot | None = None
        self.current: Current | None = None  # the store's last answer
        self.problem = ""  # why the served snapshot may not be the store's current one
        self.n_refused = 0

    @property
    def staleness(self) -> float:
        """Seconds since the store last confirmed that the served snapshot is current."""
        return max(0.0, time.time() - self._confirmed_at)

    def restore(self) -> None:
        """Serve the snapshot that was current in an earlier run, if it is still on this node."""
        version, confirmed_at = self._folder.confirmed()
        try:
            if not version or not self._folder.has_sound(version, self._tokenizer_hash):
                return
            self.served = self._opened(version)
        except (SnapshotError, OSError) as error:
            logger.warning("%s: the snapshot of an earlier run cannot be used: %s", self._name, error)
            return
        self._confirmed_at = confirmed_at
        logger.info("%s: version %s of an earlier run is served", self._name, version)

    def look(self) -> bool:
        """Ask the store once, and serve what is current; return whether the served snapshot changed.

        Raises nothing: ``problem`` and the log say that the store is away or a snapshot is refused.
        """
        before = self.served
        try:
            self.current = self._store.current()
            problem = self._follow(self.current.version)
        except StoreUnavailableError as error:
            problem = f"the store is away: {error}"
        except (StoreError, OSError) as error:
            problem = str(error)
        self.problem = log_problem(self._name, self.problem, problem)
        if self.served is not None:
            self._folder.touch([self.served.part.version])
            self._folder.sweep([self.served.part.version])
        return self.served is not before

    def _follow(self, version: str) -> str:
        """Serve ``version``, which is current; return "", or why it is not served.

        Raises:
            StoreUnavailableError: the store went away meanwhile.
        """
        if self.served is not None and not version:
            return f"the store has no snapshot any more; version {self.served.part.version} is still served"
        if version and not self._is_served(version) and (problem := self._switch(version)):
            return problem
        self._confirmed_at, self._refused = time.time(), _Refused()
        if version:
            self._folder.confirm(version)
        return ""

    def _switch(self, version: str) -> str:
        """Serve another version, unless it was refused a short time ago; return "", or why it is not served."""
        if self._refused.version == version and time.monotonic() < self._refused.again_at:
            return self._refused.problem
        try:
            self.served = self._fetched(version)
        except StoreUnavailableError:
            raise
        except (StoreError, OSError) as error:  # damaged, foreign, gone, or too large for this node's disk
            self._refuse(version, f"version {version} is refused: {error}")
            return self._refused.problem
        logger.info("%s: version %s is served now", self._name, version)
        return ""

    def _is_served(self, version: str) -> bool:
        """Return whether ``version`` is served and its files still exist: the cache may have been emptied."""
        return (
            self.served is not None and self.served.part.version == version and Path(self.served.part.folder).is_dir()
        )

    def _fetched(self, version: str) -> LocalSnapshot:
        check_tokenizer(self._store.manifest(version), self._tokenizer_hash, f"of {self._name}")
        if not self._folder.has_sound(version, self._tokenizer_hash):
            self._store.fetch(version, self._folder.path)
        return self._opened(version)

    def _opened(self, version: str) -> LocalSnapshot:
        """Open the snapshot of ``version`` on this node, and read its files into the page cache."""
        folder = self._folder.snapshot(version)
        manifest = open_snapshot(folder, self._tokenizer_hash).manifest
        read_through(folder)
        return LocalSnapshot(OfferedSnapshot(version, str(folder), manifest.tokens), manifest)

    def _refuse(self, version: str, problem: str) -> None:
        """Record that ``version`` cannot be used; the pause before the next try grows with each failure."""
        failures = self._refused.failures + 1 if self._refused.version == version else 1
        if failures == 1:  # counted once, however often it is retried
            self.n_refused += 1
        pause = pause_after(failures, RETRY_S, RETRY_MOST_S)
        self._refused = _Refused(version, problem, failures, time.monotonic() + pause)
