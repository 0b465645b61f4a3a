"""A local copy of what a store's ``current`` points at; the last one that was fetched while the store is away."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

from app.inputs.stores import open_store_at
from engine.errors import ConfigError
from engine.kept_files import cache_folder
from retrieval_store.errors import StoreUnavailableError
from retrieval_store.snapshots.cache import NodeCache, SnapshotFolder
from retrieval_store.stores.base import Store


def snapshot_folder() -> Path:
    """Where local copies of snapshots lie; may be deleted whenever nothing runs."""
    return cache_folder() / "snapshots"


def fetch_current(where: str, namespace: str, flag: str) -> Path:
    """Folder of the current snapshot of a store's namespace, fetched and verified unless it is here already.

    Says on stderr when the store does not answer and an earlier snapshot is used.

    Args:
        where: URL or folder of the store.
        namespace: in the store.
        flag: that named the store, for errors.

    Raises:
        ConfigError: the store has no current snapshot, or is away and none was fetched before.
        StoreError: what the store has is damaged.
        OSError: the cache folder cannot be written.
    """
    with closing(open_store_at(where, namespace, flag)) as store:
        folder = NodeCache(snapshot_folder(), store.url).snapshots(namespace)
        try:
            return _fetched(store, flag, folder)
        except StoreUnavailableError as error:
            version, _ = folder.confirmed()
            if not version or not folder.has(version):
                raise ConfigError(f"{flag}: {error}; no snapshot was fetched from there before") from error
            going_on = f"going on with version {version}, which was fetched earlier"
            print(f"spectra: {flag}: {error}; {going_on}", file=sys.stderr)
            return folder.snapshot(version)


def _fetched(store: Store, flag: str, folder: SnapshotFolder) -> Path:
    current = store.current()
    if not current.version:
        raise ConfigError(
            f"{flag} {store.url}: namespace {store.namespace!r} has no current snapshot; "
            f"'spectra corpus publish DIR --store {store.url}' makes one"
        )
    fetched = store.fetch(current.version, folder.path)
    folder.confirm(current.version)
    folder.touch([current.version])
    folder.sweep([current.version])
    return fetched
