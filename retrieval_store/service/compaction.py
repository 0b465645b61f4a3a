"""Compaction: live texts become part of a new snapshot of the base's texts and the log's.

They stay in the log as long as a version is there that lacks them, so that a rollback to it loses none.

The sources of a compacted snapshot say how many of its last texts are live texts. A later compaction can so drop the
oldest of them and keep the corpus. Two servers may compact at once: one moves ``current``, the other discards its work.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from retrieval_store.errors import ConflictError, StoreError
from retrieval_store.index.index import Tokens
from retrieval_store.service.live_texts import LiveTexts
from retrieval_store.service.watcher import LocalSnapshot
from retrieval_store.snapshots.cache import SnapshotFolder
from retrieval_store.snapshots.snapshot import Description, Manifest, SnapshotInput
from retrieval_store.snapshots.snapshot_index import SnapshotIndex, open_snapshot
from retrieval_store.snapshots.snapshot_writer import write_snapshot
from retrieval_store.stores.base import Store
from retrieval_store.stores.live_text import parse_id
from retrieval_store.stores.records import LiveText

logger = logging.getLogger(__name__)

LIVE = "live texts"  # name of their source in a manifest
PAGE = 1000  # entries of the log read at a time
UNUSED_S = 600.0  # seconds that a compacted version stays if its maker dies before it is current


@dataclass(frozen=True, slots=True)
class TargetVocabulary:
    """The model whose token ids the texts consist of."""

    tokenizer_hash: str
    vocab_size: int


class Compactor:
    """Makes and publishes snapshots of one namespace.

    Args:
        store: opened for the namespace; belongs to the caller's thread.
        folder: of the namespace on this node.
        target: the model whose token ids they are.
        limit: tokens of live texts in a snapshot; the oldest go first.
    """

    def __init__(self, store: Store, folder: SnapshotFolder, target: TargetVocabulary, limit: int) -> None:
        self._store = store
        self._folder = folder
        self._target = target
        self._limit = limit

    def compact(self, base: LocalSnapshot | None) -> str:
        """Publish ``base`` with all live texts behind it as ``current``; returns the version.

        Does nothing, and returns "", when ``base`` is not what the store has as current: another server was faster, or
        the store lost its snapshots, and then live texts alone must not take their place.

        Raises:
            ConflictError: another writer moved ``current`` meanwhile.
            StoreError: the store is away, or refuses the snapshot.
            OSError: the disk is full.
        """
        current = self._store.current()
        if current.version != (base.part.version if base else ""):
            return ""
        entries = list(log(self._store, base.manifest.about.folded if base else ""))
        if not entries:
            return ""
        with self._folder.scratch() as scratch:
            manifest = self._write(base, entries, scratch)
            self._store.publish(scratch, UNUSED_S)
            self._activate(manifest.version, current.revision)
            self._folder.adopt(scratch, manifest.version)
        logger.info(
            "namespace %r: %d live texts are in version %s", self._store.namespace, len(entries), manifest.version
        )
        return manifest.version

    def _activate(self, version: str, revision: int) -> None:
        try:
            self._store.activate(version, revision)
        except ConflictError:
            with contextlib.suppress(StoreError):  # it will never be current: without an end the store would fill up
                self._store.retire(version)
            raise

    def _write(self, base: LocalSnapshot | None, entries: list[LiveText], scratch: Path) -> Manifest:
        index = open_snapshot(Path(base.part.folder), self._target.tokenizer_hash) if base else None
        live = LiveTexts(self._limit, self._target.vocab_size)
        n_corpus = _corpus_texts(index)
        if index is not None:
            live.extend(islice(index.documents(), n_corpus, None))
        live.extend(entry.tokens for entry in entries)
        about = self._about(base, entries[-1].id, live)
        return write_snapshot(_documents(index, n_corpus, live), scratch, about)

    def _about(self, base: LocalSnapshot | None, folded: str, live: LiveTexts) -> Description:
        if base is None:
            about = Description(tokenizer_hash=self._target.tokenizer_hash, vocab_size=self._target.vocab_size)
        else:
            about = base.manifest.about
        digest = hashlib.sha256(b"".join(text.tobytes() for text in live.documents())).hexdigest()
        sources = tuple(source for source in about.sources if source.name != LIVE)
        source = SnapshotInput(LIVE, digest, len(live), len(live))
        return msgspec.structs.replace(about, sources=(*sources, source), folded=folded)


def trim(store: Store) -> str:
    """Cut from the log what every version that is there has, superseded ones within their grace period included.

    Returns:
        The id up to which the log was cut; "": a version has nothing of the log, or there is none.
    """
    folded = [one.manifest.about.folded for one in store.versions() if one.manifest is not None]
    upto = min(folded, key=lambda name: parse_id(name, store.namespace), default="")
    if upto:
        store.trim(upto)
    return upto


def _corpus_texts(index: SnapshotIndex | None) -> int:
    """How many of a snapshot's texts, from the first one on, are corpus and not live texts."""
    if index is None:
        return 0
    live = sum(source.kept for source in index.manifest.about.sources if source.name == LIVE)
    return index.manifest.texts - live


def _documents(index: SnapshotIndex | None, n_corpus: int, live: LiveTexts) -> Iterator[Tokens]:
    if index is not None:
        yield from islice(index.documents(), n_corpus)
    yield from live.documents()


def log(store: Store, after: str) -> Iterator[LiveText]:
    """All entries of a store's log behind the one with id ``after``."""
    while entries := store.entries(after, PAGE):
        yield from entries
        after = entries[-1].id
