"""Opens stores of snapshots that command lines name by URL or folder, and copies current snapshots to this node."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import ConfigError
from engine.kept_files import cache_folder
from retrieval_store.errors import StoreAddressError, StoreError, StoreUnavailableError
from retrieval_store.service.manifest_feed import is_namespace

if TYPE_CHECKING:  # loads Redis' client, which --help does not need
    from retrieval_store.stores.base import Store

DEFAULT_NAMESPACE = "default"
NAMESPACE_FORM = "1 to 128 letters, digits, '.', '_' and '-', no '.' first"


def is_store(where: str) -> bool:
    """Return whether ``where`` is a URL, or the folder of a store in which something was published."""
    return "://" in where or any(
        path.with_name("versions").is_dir() for path in Path(where).expanduser().glob("*/current.json")
    )


def open_store_at(where: str, namespace: str, flag: str) -> Store:
    """Return the store of ``namespace`` at ``where``, a URL or a folder, not connected yet.

    Raises ConfigError, which names ``flag``, if there is no such kind of store or the namespace is not valid.
    """
    from retrieval_store.stores.open import open_store

    if not is_namespace(namespace):
        raise ConfigError(f"{flag}: namespace is {namespace!r}; it must be {NAMESPACE_FORM}")
    with named_errors(flag):
        return open_store(str(Path(where).expanduser()) if where.startswith("~") else where, namespace)


@contextmanager
def named_errors(flag: str) -> Iterator[None]:
    """Turn every ``StoreError`` into a ConfigError, which names ``flag`` unless it names a snapshot or version."""
    try:
        yield
    except (StoreAddressError, StoreUnavailableError) as error:
        raise ConfigError(f"{flag}: {error}") from error
    except StoreError as error:
        raise ConfigError(str(error)) from error


def snapshot_folder() -> Path:
    """Return the folder of local copies of snapshots; it may be deleted whenever nothing runs."""
    return cache_folder() / "snapshots"


def fetch_current(where: str, namespace: str, flag: str) -> Path:
    """Return the folder of a namespace's current snapshot, which is fetched and verified unless this node has it.

    If the store does not answer, says so on stderr and returns the one that was fetched last. Raises ConfigError if
    there is none or the store has none, StoreError for a damaged one, OSError if the cache cannot be written.
    """
    from retrieval_store.snapshots.cache import NodeCache

    with closing(open_store_at(where, namespace, flag)) as store:
        folder = NodeCache(snapshot_folder(), store.url).snapshots(namespace)
        try:
            version = store.current().version
            if not version:
                raise ConfigError(
                    f"{flag} {store.url}: namespace {store.namespace!r} has no current snapshot; "
                    f"publish one with 'spectra corpus publish DIR --store {store.url}'"
                )
            fetched = store.fetch(version, folder.path)
        except StoreUnavailableError as error:
            version, _ = folder.confirmed()
            if not version or not folder.has(version):
                raise ConfigError(f"{flag}: {error}; no snapshot was fetched from there before") from error
            print(f"spectra: {flag}: {error}; using version {version}, which was fetched earlier", file=sys.stderr)
            return folder.snapshot(version)
        folder.confirm(version)
        folder.touch([version])
        folder.sweep([version])
        return fetched
