"""Compaction: a new snapshot with the texts of the base and the live texts of the log.

The texts stay in the log as long as a version exists that lacks them, so that a rollback to it loses none.

A compacted snapshot says in its sources how many of its last texts are live texts, so a later compaction can drop the
oldest of them and keep the corpus. Two servers may compact at once: one moves ``current``, the other discards its work.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import msgspec

from retrieval_store.errors import ConflictError, StoreError
from retrieval_store.index.index import Tokens
from retrieval_store.service.live_texts import LiveTexts
from retrieval_store.service.watcher import LocalSnapshot
from retrieval_store.snapshots.cache import SnapshotFolder
from retrieval_store.snapshots.snapshot import Description, Manifest, SnapshotInput
from retrieval_store.snapshots.snapshot_index import open_snapshot
from retrieval_store.snapshots.snapshot_writer import write_snapshot
from retrieval_store.stores.base import Store
from retrieval_store.stores.live_text import parse_id
from retrieval_store.stores.records import LiveText

logger = logging.getLogger(__name__)

LIVE = "live texts"  # name of their source in a manifest
PAGE = 1000  # entries of the log read at a time
UNUSED_S = 600.0  # a compacted version expires after this time if the server dies before it activates it


@dataclass(frozen=True, slots=True)
class TargetVocabulary:
    """The target model whose token ids the texts consist of."""

    tokenizer_hash: str
    vocab_size: int


def compact(
    store: Store, base: LocalSnapshot | None, folder: SnapshotFolder, target: TargetVocabulary, limit: int
) -> str:
    """Publish a snapshot of ``base`` and all later live texts, make it current, and return its version.

    Does nothing and returns "" when ``base`` is not the store's current version: another server was faster, or the
    store lost its snapshots, which live texts alone must not replace. The snapshot gets at most ``limit`` tokens of
    live texts, the newest, and stays in ``folder``, the one of the namespace on this node.

    Raises:
        ConflictError: another writer moved ``current`` meanwhile.
        StoreError: the store is away, or refuses the snapshot.
        OSError: the disk is full.
    """
    current = store.current()
    if current.version != (base.part.version if base else ""):
        return ""
    entries = list(log(store, base.manifest.about.folded if base else ""))
    if not entries:
        return ""
    with folder.scratch() as scratch:
        version = _write(base, entries, scratch, target, limit).version
        store.publish(scratch, UNUSED_S)
        try:
            store.activate(version, current.revision)
        except ConflictError:
            with contextlib.suppress(StoreError):  # it is never current; without this it would fill the store
                store.retire(version)
            raise
        folder.adopt(scratch, version)
    logger.info("namespace %r: version %s contains %d live texts", store.namespace, version, len(entries))
    return version


def _write(
    base: LocalSnapshot | None, entries: list[LiveText], folder: Path, target: TargetVocabulary, limit: int
) -> Manifest:
    live = LiveTexts(limit, target.vocab_size)
    about = Description(tokenizer_hash=target.tokenizer_hash, vocab_size=target.vocab_size)
    corpus: Iterable[Tokens] = ()
    if base is not None:
        about = base.manifest.about
        index = open_snapshot(Path(base.part.folder), target.tokenizer_hash)
        n_corpus = base.manifest.texts - sum(source.kept for source in about.sources if source.name == LIVE)
        corpus = islice(index.documents(), n_corpus)
        for text in islice(index.documents(), n_corpus, None):
            live.add(text)
    for entry in entries:
        live.add(entry.tokens)
    digest = hashlib.sha256(b"".join(text.tobytes() for text in live.documents())).hexdigest()
    others = (source for source in about.sources if source.name != LIVE)
    sources = (*others, SnapshotInput(LIVE, digest, len(live), len(live)))
    about = msgspec.structs.replace(about, sources=sources, folded=entries[-1].id)
    return write_snapshot(chain(corpus, live.documents()), folder, about)


def trim(store: Store) -> str:
    """Remove from the log what all versions contain, superseded ones in their grace period included.

    Returns:
        The id up to which the log was trimmed; "": there is no version, or one contains nothing of the log.
    """
    folded = [one.manifest.about.folded for one in store.versions() if one.manifest is not None]
    upto = min(folded, key=lambda name: parse_id(name, store.namespace), default="")
    if upto:
        store.trim(upto)
    return upto


def log(store: Store, after: str) -> Iterator[LiveText]:
    """Yield all entries of a store's log after the one with the id ``after``."""
    while entries := store.entries(after, PAGE):
        yield from entries
        after = entries[-1].id
