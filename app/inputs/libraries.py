"""Opens the library that ``--retrieval`` names, in the process that drafts.

The flag names a snapshot's folder, a store of snapshots (a folder or Redis), text, ``builtin`` or ``none``. Versions
that a store publishes later are not noticed here; a server's retrieval service watches for them
(``deployments.retrieval``). No password is printed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from app.inputs.builtin_corpus import BUILTIN, builtin_snapshot
from app.inputs.stores import DEFAULT_NAMESPACE, fetch_current, is_store
from app.inputs.text_index import index_of
from app.inputs.tokenizers import load_tokenizer
from engine.errors import ConfigError, UnsupportedModelError
from engine.model.identity import tokenizer_hash
from engine.model.resolve import resolve
from retrieval_store.errors import StoreAddressError, StoreError
from retrieval_store.index.index import FixedLibrary, Library
from retrieval_store.snapshots.corpus import CorpusError, read_documents
from retrieval_store.snapshots.snapshot import MANIFEST
from retrieval_store.snapshots.snapshot_index import open_snapshot
from retrieval_store.stores.open import check_form, shown

NONE = "none"
FLAG = "--retrieval"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LibraryAt:
    """Opens the library of a place, once per process; sent to the processes that draft instead of the library."""

    where: str = field(repr=False)  # absolute path, URL (perhaps with a password), or BUILTIN
    tokenizer: str  # directory or hub id of the target
    namespace: str = DEFAULT_NAMESPACE  # of a store
    revision: str | None = None  # of the target on the hub
    is_optional: bool = False  # if it cannot be opened, log a warning and use an empty library

    def __call__(self) -> Library:
        """Return the library; raise ConfigError, which names the flag, if it cannot be opened and is not optional.

        Text is read and tokenised, at about a megabyte per second.
        """
        return _opened(self)[0]

    @property
    def label(self) -> str:
        """What was opened, for the records of a run; opens it if needed, and raises as a call does."""
        return _opened(self)[1]

    @property
    def is_text(self) -> bool:
        """Whether this is text, which takes long to index, rather than snapshots."""
        return self.where != BUILTIN and not is_store(self.where) and not (Path(self.where) / MANIFEST).is_file()


def library_at(
    where: str | None, tokenizer: str, namespace: str = DEFAULT_NAMESPACE, revision: str | None = None
) -> LibraryAt | None:
    """Return what opens the library that ``--retrieval`` names as ``where``; None for ``none``.

    The other arguments are those of ``LibraryAt``. Raises ConfigError if there is nothing at ``where``.
    """
    return None if where in (None, NONE) else LibraryAt(checked_place(where), tokenizer, namespace, revision)


def prepare(at: LibraryAt | None) -> None:
    """Build the built-in snapshot, or check that a snapshot fits the model, before the drafting processes start.

    They index text themselves, since an index cannot be sent, and open stores, which may start later. Raises
    ConfigError if the snapshot cannot be used and is not optional.
    """
    if at is not None and not at.is_text and not is_store(at.where):
        at()


def checked_place(where: str) -> str:
    """Return ``where``, a path made absolute; raise ConfigError if it does not exist or is an incomplete URL."""
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
    try:
        return _open(at)
    except Exception as error:
        if at.is_optional:
            logger.warning("retrieval from %s is left out: %s", shown(at.where), error)
            return FixedLibrary(), f"{shown(at.where)}, which could not be opened"
        if isinstance(error, (StoreError, OSError, CorpusError)):
            raise ConfigError(f"{FLAG} {shown(at.where)}: {error}") from error
        raise


def _open(at: LibraryAt) -> tuple[Library, str]:
    path = resolve(at.tokenizer, at.revision, weights=())
    folder = Path(at.where)
    if at.is_text:
        documents = list(read_documents(folder))
        return FixedLibrary(index_of(documents, load_tokenizer(path))), at.where
    if at.where == BUILTIN:
        folder = builtin_snapshot(path)
    elif is_store(at.where):
        folder = fetch_current(at.where, at.namespace, FLAG)
    index = open_snapshot(folder, hash_of(path))
    return FixedLibrary(index), f"{shown(at.where)}, version {index.manifest.version}"


def hash_of(path: Path) -> str:
    """Return ``tokenizer_hash`` of a model's directory; raise UnsupportedModelError if it has no ``tokenizer.json``."""
    try:
        return tokenizer_hash(path)
    except OSError as error:
        raise UnsupportedModelError(f"{path} has no tokenizer.json, whose hash identifies it to snapshots") from error
