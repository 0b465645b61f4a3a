"""Watches ``current`` of one namespace and brings what it points at to this node's disk, verified.

What is served only ever gives way to another verified snapshot: not to a damaged or foreign one, not to a store that is
away, nor to one that came back empty. Knows neither threads nor who reads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from retrieval_store.errors import DamagedSnapshotError, SnapshotError, StoreError, StoreUnavailableError
from retrieval_store.service.backoff import pause_after
from retrieval_store.service.cache import NamespaceFolder, Remembered, read_through
from retrieval_store.service.manifest_feed import Part
from retrieval_store.snapshots.snapshot import Manifest, check_tokenizer, verify
from retrieval_store.snapshots.snapshot_index import open_snapshot
from retrieval_store.stores.base import Current, Store

logger = logging.getLogger(__name__)

RETRY_S = 30.0  # before a snapshot that could not be used is fetched again; doubles with every failure
RETRY_MOST_S = 600.0


@dataclass(frozen=True, slots=True)
class Served:
    """A snapshot on this node that is handed out."""

    part: Part
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class _Refused:
    version: str
    problem: str
    failures: int
    again_at: float  # monotonic seconds; before that it is not looked at


class Watcher:
    """One namespace of one store. Belongs to one thread; the properties may be read from any.

    Args:
        store: opened for the namespace; belongs to the same thread.
        folder: of the namespace on this node.
        tokenizer_hash: snapshots of another tokenizer are refused.
        clock: seconds since 1970.
    """

    def __init__(
        self, store: Store, folder: NamespaceFolder, tokenizer_hash: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._folder = folder
        self._tokenizer_hash = tokenizer_hash
        self._clock = clock
        self._confirmed_at = clock()
        self._refused: _Refused | None = None
        self._name = f"namespace {store.namespace!r} of {store.url}"
        self.served: Served | None = None
        self.current: Current | None = None  # as last heard of
        self.problem = ""  # why what is served may not be what the store has
        self.n_refused = 0

    @property
    def staleness(self) -> float:
        """Seconds since the store last confirmed what is served; 0 right after that."""
        return max(0.0, self._clock() - self._confirmed_at)

    def restore(self) -> None:
        """Serve what was current when an earlier process last looked, if it is still on this node."""
        known = self._folder.remembered()
        if known is None or not self._folder.has(known.version):
            return
        try:
            self._serve_copy(known.version)
        except (SnapshotError, OSError) as error:
            logger.warning("%s: the snapshot of the last run is of no use: %s", self._name, error)
            return
        self._confirmed_at = self._folder.confirmed_at() or self._confirmed_at
        logger.info("%s: version %s is here from an earlier run", self._name, known.version)

    def look(self) -> bool:
        """Ask the store once and take over what is current; whether something else is served now.

        Raises nothing: a store that is away and a snapshot that is refused are written to ``problem`` and the log.
        """
        before = self.served
        try:
            self.current = self._store.current()
            self._follow(self.current)
        except StoreUnavailableError as error:
            self._note(f"the store is away: {error}")
        except (StoreError, OSError) as error:
            self._note(str(error))
        self._sweep()
        return self.served is not before

    def _follow(self, current: Current) -> None:
        version = self.served.part.version if self.served else ""
        if not current.version and version:
            self._note(f"the store has no snapshot any more; version {version} stays")
            return
        is_here = not version or self._folder.snapshot(version).is_dir()  # or somebody emptied the cache
        if (current.version != version or not is_here) and not self._take(current.version):
            return
        self._confirmed_at = self._clock()
        self._refused = None
        self._note("")
        if current.version:
            self._remember(current)

    def _remember(self, current: Current) -> None:
        what = Remembered(current.version, current.revision)
        if self._folder.remembered() == what:
            self._folder.confirm()
        else:
            self._folder.remember(what)

    def _take(self, version: str) -> bool:
        """Serve ``version``; whether that worked, or why not is noted."""
        refused = self._refused
        if refused is not None and refused.version == version and time.monotonic() < refused.again_at:
            self._note(refused.problem)
            return False
        try:
            check_tokenizer(self._store.manifest(version), self._tokenizer_hash, f"of {self._name}")
            self._fetch(version)
        except StoreUnavailableError:
            raise
        except (StoreError, OSError) as error:  # damaged, foreign, gone, or too large for this node's disk
            self._refuse(version, f"version {version} is refused: {error}")
            return False
        logger.info("%s: version %s is served now", self._name, version)
        return True

    def _fetch(self, version: str) -> None:
        self._folder.make()
        try:
            if self._folder.has(version):
                self._serve_copy(version)
                return
        except DamagedSnapshotError as error:
            logger.warning("%s: the copy on this node is fetched again: %s", self._name, error)
        self._store.fetch(version, self._folder.path)
        self._serve(version)

    def _serve_copy(self, version: str) -> None:
        """Serve what lies on this node since an earlier time, unless it was hurt since; then it is removed."""
        try:
            verify(self._folder.snapshot(version), self._tokenizer_hash)
        except DamagedSnapshotError:
            self._folder.discard(version)
            raise
        self._serve(version)

    def _serve(self, version: str) -> None:
        folder = self._folder.snapshot(version)
        manifest = open_snapshot(folder, self._tokenizer_hash).manifest
        read_through(folder)  # into the page cache, before anybody drafts from it
        self.served = Served(Part(version, str(folder), manifest.tokens), manifest)

    def _refuse(self, version: str, problem: str) -> None:
        before = self._refused
        failures = before.failures + 1 if before is not None and before.version == version else 1
        if failures == 1:  # counted once, however often it is tried again
            self.n_refused += 1
        pause = pause_after(failures, RETRY_S, RETRY_MOST_S)
        self._refused = _Refused(version, problem, failures, time.monotonic() + pause)
        self._note(problem)

    def _note(self, problem: str) -> None:
        if problem and problem != self.problem:
            logger.warning("%s: %s", self._name, problem)
        elif self.problem and not problem:
            logger.info("%s: all is well again", self._name)
        self.problem = problem

    def _sweep(self) -> None:
        if self.served is not None:
            self._folder.touch([self.served.part.version])
            self._folder.sweep([self.served.part.version])
