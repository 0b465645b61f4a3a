"""What ``--retrieval`` may name, and the library it becomes in the process that drafts.

Five forms: a snapshot's folder, a store of snapshots (a folder or in Redis), text, ``builtin``, ``none``. What a store
publishes later goes unnoticed here; a server watches it (``deployments.retrieval``). Nothing printed holds a password.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from app.inputs.builtin_corpus import BUILTIN, builtin_snapshot
from app.inputs.current_snapshot import fetch_current
from app.inputs.stores import DEFAULT_NAMESPACE, is_store
from app.inputs.text_index import corpus_index
from engine.errors import ConfigError, UnsupportedModelError
from engine.model.identity import tokenizer_hash
from engine.model.resolve import resolve
from retrieval_store.errors import StoreAddressError, StoreError
from retrieval_store.index.index import FixedLibrary, Library
from retrieval_store.snapshots.snapshot import MANIFEST
from retrieval_store.snapshots.snapshot_index import open_snapshot
from retrieval_store.stores.open import check_form, shown

NONE = "none"
FLAG = "--retrieval"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LibraryAt:
    """Makes the library of a place, once per process; travels to where it is needed instead of the library itself."""

    where: str = field(repr=False)  # absolute path, URL (perhaps with a password), or BUILTIN
    tokenizer: str  # directory or hub id of the target
    namespace: str = DEFAULT_NAMESPACE  # of a store
    revision: str | None = None  # of the target on the hub
    is_optional: bool = False  # what cannot be had is left out, with a line in the log

    def __call__(self) -> Library:
        """The library. Text is read and tokenised now, at about a megabyte per second.

        Raises:
            ConfigError: it cannot be had, and is not optional; the message names the flag.
        """
        return _opened(self)[0]

    @property
    def label(self) -> str:
        """What was read there, for the records of a run. Opens it if that has not happened yet.

        Raises:
            ConfigError: as when called.
        """
        return _opened(self)[1]

    @property
    def is_text(self) -> bool:
        """Whether this is text, which takes long to index, rather than snapshots."""
        return self.where != BUILTIN and not is_store(self.where) and not _is_snapshot(self.where)


def library_at(
    where: str | None, tokenizer: str, namespace: str = DEFAULT_NAMESPACE, revision: str | None = None
) -> LibraryAt | None:
    """What makes the library of ``where``; None for none.

    Args:
        where: what ``--retrieval`` was given.
        tokenizer: directory or hub id of the target.
        namespace: of a store.
        revision: of the target on the hub.

    Raises:
        ConfigError: there is nothing at ``where``.
    """
    return None if where in (None, NONE) else LibraryAt(checked_place(where), tokenizer, namespace, revision)


def prepare(at: LibraryAt | None) -> None:
    """Before the drafting processes start: build the built-in snapshot, refuse a snapshot that does not fit the model.

    The drafting processes index text themselves, since an index does not travel, and open stores, which may come up
    later.

    Raises:
        ConfigError: the snapshot is of no use, and not optional.
    """
    if at is not None and not at.is_text and not is_store(at.where):
        at()


def checked_place(where: str) -> str:
    """``where``, a path made absolute.

    Raises:
        ConfigError: there is nothing, or it is half a URL.
    """
    try:
        check_form(where)
    except StoreAddressError as error:
        raise ConfigError(f"{FLAG}: {error}") from error
    if where == BUILTIN or "://" in where:
        return where
    path = Path(where).expanduser()
    if not path.exists():
        raise ConfigError(f"{FLAG} {where}: no such file or folder; {BUILTIN!r} and {NONE!r} are known names")
    return str(path.resolve())


@lru_cache(maxsize=4)
def _opened(at: LibraryAt) -> tuple[Library, str]:
    """The library and what it is."""
    try:
        return _open(at)
    except Exception as error:
        if at.is_optional:
            logger.warning("retrieval from %s is left out: %s", shown(at.where), error)
            return FixedLibrary(), f"{shown(at.where)}, which could not be had"
        if isinstance(error, (StoreError, OSError)):
            raise ConfigError(f"{FLAG} {shown(at.where)}: {error}") from error
        raise


def _open(at: LibraryAt) -> tuple[Library, str]:
    if at.is_text:
        return FixedLibrary(corpus_index(at.where, at.tokenizer, at.revision)), at.where
    path = resolve(at.tokenizer, at.revision, weights=())
    folder = Path(at.where)
    if at.where == BUILTIN:
        folder = builtin_snapshot(path)
    elif is_store(at.where):
        folder = fetch_current(at.where, at.namespace, FLAG)
    index = open_snapshot(folder, hash_of(path))
    return FixedLibrary(index), f"{shown(at.where)}, version {index.manifest.version}"


def hash_of(path: Path) -> str:
    """``tokenizer_hash`` of a model's directory.

    Raises:
        UnsupportedModelError: it has no ``tokenizer.json``.
    """
    try:
        return tokenizer_hash(path)
    except OSError as error:
        raise UnsupportedModelError(f"{path} has no tokenizer.json, by which snapshots know a tokenizer") from error


def _is_snapshot(where: str) -> bool:
    return (Path(where) / MANIFEST).is_file()
