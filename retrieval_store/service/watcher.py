"""Watches ``current`` of one namespace and brings what it points at to this node's disk, verified.

A served snapshot only gives way to another verified one: not to a damaged or foreign one, not while the store is away,
nor when the store came back empty. Starts no threads and knows no readers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from retrieval_store.errors import SnapshotError, StoreError, StoreUnavailableError
from retrieval_store.service.backoff import pause_after
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
    """The current version that could not be used, and when it is tried again."""

    version: str = ""
    problem: str = ""
    failures: int = 0
    again_at: float = 0.0  # monotonic seconds; before that the version is not tried again


_NONE_REFUSED = _Refused()


class NamespaceWatcher:
    """One namespace of one store. Belongs to one thread; the properties may be read from any.

    Args:
        store: opened for the namespace; belongs to the same thread.
        folder: of the namespace on this node.
        tokenizer_hash: snapshots of another tokenizer are refused.
        clock: seconds since 1970.
    """

    def __init__(
        self, store: Store, folder: SnapshotFolder, tokenizer_hash: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._folder = folder
        self._tokenizer_hash = tokenizer_hash
        self._clock = clock
        self._confirmed_at = clock()
        self._refused = _NONE_REFUSED
        self._name = f"namespace {store.namespace!r} of {store.url}"
        self.served: LocalSnapshot | None = None
        self.current: Current | None = None  # as last heard of
        self.problem = ""  # why what is served may not be what the store has
        self.n_refused = 0

    @property
    def staleness(self) -> float:
        """Seconds since the store last confirmed what is served; 0 right after that."""
        return max(0.0, self._clock() - self._confirmed_at)

    def restore(self) -> None:
        """Serve what was current when an earlier process last looked, if it is still on this node."""
        version, confirmed_at = self._folder.confirmed()
        try:
            if not version or not self._folder.has_sound(version, self._tokenizer_hash):
                return
            self.served = self._opened(version)
        except (SnapshotError, OSError) as error:
            logger.warning("%s: the snapshot of the last run cannot be used: %s", self._name, error)
            return
        self._confirmed_at = confirmed_at
        logger.info("%s: version %s is here from an earlier run", self._name, version)

    def look(self) -> bool:
        """Ask the store once and take over what is current; whether something else is served now.

        Raises nothing: a store that is away and a snapshot that is refused are written to ``problem`` and the log.
        """
        before = self.served
        try:
            self.current = self._store.current()
            problem = self._follow(self.current.version)
        except StoreUnavailableError as error:
            problem = f"the store is away: {error}"
        except (StoreError, OSError) as error:
            problem = str(error)
        self._report(problem)
        if self.served is not None:
            self._folder.touch([self.served.part.version])
            self._folder.sweep([self.served.part.version])
        return self.served is not before

    def _follow(self, version: str) -> str:
        """Serve ``version``, which is current; returns why it is not served, or "".

        Raises:
            StoreUnavailableError: the store went away meanwhile.
        """
        if self.served is not None and not version:
            return f"the store has no snapshot any more; version {self.served.part.version} stays"
        if version and not self._is_served(version) and (problem := self._switch(version)):
            return problem
        self._confirmed_at, self._refused = self._clock(), _NONE_REFUSED
        if version:
            self._folder.confirm(version)
        return ""

    def _switch(self, version: str) -> str:
        """``_follow`` to a version that is not served yet, unless it was refused a short time ago."""
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
        """Whether ``version`` is served and its files are still here: the cache may have been emptied."""
        return (
            self.served is not None and self.served.part.version == version and Path(self.served.part.folder).is_dir()
        )

    def _fetched(self, version: str) -> LocalSnapshot:
        """The snapshot of ``version``, on this node's disk and verified."""
        check_tokenizer(self._store.manifest(version), self._tokenizer_hash, f"of {self._name}")
        if not self._folder.has_sound(version, self._tokenizer_hash):
            self._store.fetch(version, self._folder.path)
        return self._opened(version)

    def _opened(self, version: str) -> LocalSnapshot:
        """The snapshot of ``version``, which is on this node, to be served; its files are in the page cache."""
        folder = self._folder.snapshot(version)
        manifest = open_snapshot(folder, self._tokenizer_hash).manifest
        read_through(folder)
        return LocalSnapshot(OfferedSnapshot(version, str(folder), manifest.tokens), manifest)

    def _refuse(self, version: str, problem: str) -> None:
        """Do not try ``version`` again for a while, which is longer the more often it could not be used."""
        failures = self._refused.failures + 1 if self._refused.version == version else 1
        if failures == 1:  # counted once, however often it is tried again
            self.n_refused += 1
        pause = pause_after(failures, RETRY_S, RETRY_MOST_S)
        self._refused = _Refused(version, problem, failures, time.monotonic() + pause)

    def _report(self, problem: str) -> None:
        """Publish ``problem``, or its end; logged when it changes, not at every look."""
        if problem and problem != self.problem:
            logger.warning("%s: %s", self._name, problem)
        elif self.problem and not problem:
            logger.info("%s: no problem is left", self._name)
        self.problem = problem
