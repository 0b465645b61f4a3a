"""The library of a drafting process: indexes of the snapshots that the service offers, swapped between two drafts.

A draft reads one dictionary and gets a tuple. A thread of the reader does everything else: it asks the service, copies
files to this node and opens them. One assignment replaces the old indexes, so a draft sees the old or the new ones, and
never waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from retrieval_store.index.index import SHARED, Index
from retrieval_store.service.backoff import pause_after
from retrieval_store.service.interest import Interest
from retrieval_store.service.manifest_feed import CHUNK, ManifestSource, NamespaceOffer, OfferedSnapshot, Status
from retrieval_store.snapshots.cache import SnapshotFolder, folder_at
from retrieval_store.snapshots.files import checked, write_blocks
from retrieval_store.snapshots.snapshot import MANIFEST, check_tokenizer, decode_manifest
from retrieval_store.snapshots.snapshot_index import open_snapshot

logger = logging.getLogger(__name__)

POLL_S = 1.0  # longest wait for an answer, and so the longest until a new namespace is noticed
BACKOFF_S, BACKOFF_MOST_S = 0.5, 10.0  # pause after a failed call, doubling
REFUSED_S = 10.0  # pause before an offer that could not be opened is tried again
RETIRED_S = 5.0  # a replaced index is closed after this time, when no draft can use it


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """One snapshot that a reader has open."""

    part: OfferedSnapshot
    folder: SnapshotFolder
    index: Index


_Pair = tuple["Held | None", "Held | None"]  # base and delta
_NOTHING: _Pair = (None, None)


class Reader:
    """A ``Library`` that follows the service.

    Args:
        source: the service; used by the reader's thread only.
        shared: name of the namespace whose text is visible to all others.
        tokenizer_hash: of the target; other snapshots are refused.
        fixed: indexes that all namespaces always use, last.
    """

    def __init__(
        self,
        source: ManifestSource,
        shared: str,
        tokenizer_hash: str = "",
        fixed: Sequence[Index] = (),
        poll: float = POLL_S,
    ) -> None:
        self._source = source
        self._shared = shared
        self._tokenizer_hash = tokenizer_hash
        self._fixed = tuple(fixed)
        self._poll = poll
        self._common: tuple[Index, ...] = self._fixed  # for every namespace
        self._views: dict[str, tuple[Index, ...]] = {SHARED: self._common, shared: self._common}
        self._interest = Interest()
        self._held: dict[str, _Pair] = {}
        self._shown: dict[str, _Pair] = {}  # the part of these that drafts see
        self._refused: dict[tuple[str, str], float] = {}  # (namespace, version) -> when to try again
        self._folders: dict[Path, SnapshotFolder] = {}
        self._retired: list[tuple[float, Held]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retrieval-reader", daemon=True)
        self.status = Status()  # the service's last answer
        self._answered_at = time.monotonic()
        self.n_swaps = 0

    def of(self, namespace: str) -> Sequence[Index]:
        view = self._views.get(namespace)
        if namespace not in (SHARED, self._shared):
            self._interest.note(namespace)
        return self._common if view is None else view

    @property
    def silence(self) -> float:
        """Seconds since the service answered last, or since the reader was constructed."""
        return time.monotonic() - self._answered_at

    @property
    def patience(self) -> float:
        """Seconds of silence after which the service counts as away."""
        return 3 * self._poll + BACKOFF_MOST_S

    def versions(self, namespace: str) -> tuple[str, str]:
        """Return the versions of base and delta that drafts of ``namespace`` use; "" for none."""
        base, delta = self._shown.get(namespace, _NOTHING)
        return (base.part.version if base else "", delta.part.version if delta else "")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; indexes that drafts hold stay usable."""
        self._stopped.set()
        self._thread.join(self._poll + 1.0)

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            try:
                self.follow(self._poll)
                failures = 0
            except Exception as error:  # the service is away; what is held is kept
                failures += 1
                if failures == 1:
                    logger.warning("the retrieval service does not answer: %s", error or type(error).__name__)
                self._stopped.wait(pause_after(failures, BACKOFF_S, BACKOFF_MOST_S))

    def follow(self, timeout: float) -> None:
        """Ask the service once, and fetch and open what it offers.

        Raises:
            Exception: whatever the source raises when the service is away.
        """
        # Close indexes that no draft can use. This thread does it, because unmapping a large one takes milliseconds.
        self._retired = [entry for entry in self._retired if time.monotonic() - entry[0] < RETIRED_S]
        live = {name for name, pair in self._held.items() if any(pair)}
        names = [self._shared, *self._interest.names(live)]
        answer = self._source.changes({name: self.versions(name) for name in names}, timeout)
        self.status, self._answered_at = answer.status, time.monotonic()
        self._interest.learn(names, answer.empty)
        swaps_before = self.n_swaps
        for name, offer in answer.offers.items():
            if name in names and self._take(name, offer):
                self._show(names)  # at once: the next one may have to come from another node
        if self.n_swaps > swaps_before or self._held.keys() != set(names):
            self._show(names)
            self._sweep()
        elif answer.offers:
            self._stopped.wait(self._poll)  # none could be opened, and the service would offer them again at once
        for held in self._all():
            held.folder.touch([held.part.version])

    def _take(self, name: str, offer: NamespaceOffer) -> bool:
        """Open the offered snapshots; return whether base or delta changed."""
        old_base, old_delta = self._held.get(name, _NOTHING)
        base = old_base if offer.base is None else self._opened(name, offer.base, old_base)
        delta = None if offer.delta is None else self._opened(name, offer.delta, old_delta)
        if base is old_base and delta is old_delta:
            return False
        self._held[name] = (base, delta)
        self._retire(held for held in (old_base, old_delta) if held not in (base, delta))
        self.n_swaps += 1
        return True

    def _opened(self, name: str, part: OfferedSnapshot, old: Held | None) -> Held | None:
        """Return ``part``, open; ``old`` if it cannot be fetched or opened now."""
        if old is not None and old.part.version == part.version:
            return old
        if time.monotonic() < self._refused.get((name, part.version), 0.0):
            return old
        try:
            path = Path(part.folder).parent  # the same as on the service's node
            folder = self._folders.setdefault(path, folder_at(path))
            place = folder.fetch(part.version, lambda into: self._copy(name, part.version, into))
            # The page cache has the files: the service has just read them on this node, or we have just written them.
            return Held(part, folder, open_snapshot(place, self._tokenizer_hash))
        except Exception as error:
            logger.warning("namespace %r: version %s cannot be opened: %s", name, part.version, error)
            self._refused = {key: at for key, at in self._refused.items() if at > time.monotonic()}
            self._refused[name, part.version] = time.monotonic() + REFUSED_S
            return old

    def _copy(self, namespace: str, version: str, into: Path) -> None:
        """Copy a snapshot from the service to the folder ``into``, verified."""
        raw = b"".join(self._blocks(namespace, version, MANIFEST))
        manifest = decode_manifest(raw, version)
        check_tokenizer(manifest, self._tokenizer_hash, version)
        for name, entry in manifest.files.items():
            blocks = self._blocks(namespace, version, name)
            write_blocks(into / name, checked(blocks, entry, f"{name} of version {version}"))
        write_blocks(into / MANIFEST, [raw])

    def _blocks(self, namespace: str, version: str, file: str) -> Iterator[bytes]:
        offset, is_last = 0, False
        while not is_last:
            block = self._source.read(namespace, version, file, offset)
            self._answered_at = time.monotonic()  # a service that sends a large snapshot is not silent
            yield block
            offset, is_last = offset + len(block), len(block) < CHUNK

    def _show(self, names: list[str]) -> None:
        """Let drafts see the indexes that are held, and drop namespaces not in ``names``."""
        self._retire(chain.from_iterable(pair for name, pair in self._held.items() if name not in names))
        self._held = {name: self._held.get(name, _NOTHING) for name in names}
        common = (*_indexes(self._held[self._shared]), *self._fixed)
        views = {name: (*_indexes(pair), *common) for name, pair in self._held.items() if name != self._shared}
        self._common = common
        self._views = views | {SHARED: common, self._shared: common}
        self._shown = self._held.copy()  # after the views: drafts use the versions that are reported

    def _retire(self, replaced: Iterable[Held | None]) -> None:
        self._retired += [(time.monotonic(), held) for held in replaced if held is not None]

    def _all(self) -> list[Held]:
        return [held for held in chain.from_iterable(self._held.values()) if held is not None]

    def _sweep(self) -> None:
        """Remove unused snapshots from this node; the service, which sweeps its own, may run on another one."""
        used: dict[SnapshotFolder, set[str]] = {folder: set() for folder in self._folders.values()}
        for held in self._all():
            used[held.folder].add(held.part.version)
        for folder, versions in used.items():
            folder.sweep(versions)
        self._folders = {folder.path: folder for folder, versions in used.items() if versions}


def _indexes(pair: _Pair) -> tuple[Index, ...]:
    base, delta = pair
    return tuple(held.index for held in (delta, base) if held is not None)
