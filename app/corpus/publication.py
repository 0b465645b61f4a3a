"""Publishes snapshots to stores, and says on stdout what was published where."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from app.inputs.stores import DEFAULT_NAMESPACE, named_errors, open_store_at
from retrieval_store.errors import ConflictError

if TYPE_CHECKING:  # --help reads no manifest and no texts
    from app.corpus.settings import BuildSettings
    from retrieval_store.stores.base import Store
    from retrieval_store.stores.records import Current

FLAG = "--redis"


def publish_snapshot(
    store: Store, folder: Path, is_activated: bool = True, expected: int | None = None, unused: float | None = None
) -> None:
    """Upload the snapshot in ``folder`` and print its version; make it the current one if ``is_activated``.

    Args:
        is_activated: whether it becomes the current one.
        expected: see ``Store.activate``.
        unused: see ``Store.publish``.

    Raises:
        StoreError: the snapshot is damaged, ``current`` is not at ``expected``, or the store is away.
    """
    from app.corpus.stats import size
    from retrieval_store.snapshots.snapshot import read_manifest

    manifest = read_manifest(folder)
    version = store.publish(folder, unused)
    what = f"{manifest.texts:,} texts, {manifest.tokens:,} tokens, {size(manifest.bytes)}"
    print(f"published {version} ({what}) in {place(store)}")
    if not is_activated:
        print_expiry(store, version, "unless it is activated before")
        return
    try:
        move(store, lambda: store.activate(version, expected))
    except ConflictError as error:
        raise ConflictError(f"{error}; {version} is published, but not current") from error


def move(store: Store, by: Callable[[], Current]) -> None:
    """Move ``current`` and print where it points now, and when the version before expires."""
    before, now = store.current(), by()
    if before.version not in ("", now.version):
        print_expiry(store, before.version, "and can be current again until then")
    print_current(now)


def print_expiry(store: Store, version: str, unless: str) -> None:
    """Print when a version expires, if it does."""
    from app.corpus.stats import when

    for one in store.versions():
        if one.version == version and one.expires_at is not None:
            print(f"{version} expires at {when(one.expires_at)}, {unless}")


def place(store: Store) -> str:
    """Address and namespace of a store."""
    return f"{store.url}, namespace {store.namespace}"


def print_current(current: Current) -> None:
    """Print which version is the current one."""
    print(f"current: {current.version or 'none'} (revision {current.revision})")


def check_store(settings: BuildSettings) -> None:
    """Connect to the store of a build, so that a wrong address is found before hours of scoring.

    Raises:
        ConfigError: the address is wrong, or the store does not answer.
    """
    if settings.redis is not None:
        with named_errors(FLAG), closing(_open(settings, settings.redis)) as store:
            store.current()


def publish(settings: BuildSettings) -> None:
    """Upload the snapshot of a build and make it the current one, if a store was named.

    Raises:
        ConfigError: the store does not answer, or another publisher moved ``current`` meanwhile; ``--out`` keeps the
            snapshot.
    """
    if settings.redis is not None:
        with named_errors(FLAG), closing(_open(settings, settings.redis)) as store:
            publish_snapshot(store, settings.out)


def _open(settings: BuildSettings, url: str) -> Store:
    return open_store_at(url, settings.namespace or DEFAULT_NAMESPACE, FLAG)
