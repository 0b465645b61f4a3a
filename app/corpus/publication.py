"""Where a build's snapshot goes when it is asked to publish it."""

from __future__ import annotations

from contextlib import closing

from app.commands.corpus_store import publish_snapshot
from app.corpus.settings import BuildSettings
from app.inputs.stores import DEFAULT_NAMESPACE, named_errors, open_store_at
from retrieval_store.stores.base import Store

FLAG = "--redis"


def check_store(settings: BuildSettings) -> None:
    """Reach for the store before hours of scoring, not after them.

    Raises:
        ConfigError: there is no such store, or it is away.
    """
    if settings.redis is not None:
        with named_errors(FLAG), closing(_open(settings, settings.redis)) as store:
            store.current()


def publish(settings: BuildSettings) -> None:
    """Upload the snapshot and make it the current one, if a store was named.

    Raises:
        ConfigError: the store is away, or somebody else moved ``current`` meanwhile; the snapshot stays in ``--out``.
    """
    if settings.redis is not None:
        with named_errors(FLAG), closing(_open(settings, settings.redis)) as store:
            publish_snapshot(store, settings.out)


def _open(settings: BuildSettings, url: str) -> Store:
    return open_store_at(url, settings.namespace or DEFAULT_NAMESPACE, FLAG)
