"""A compaction that dies before it activates its version leaves nothing for good, and no text is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retrieval_store.service import compaction
from retrieval_store.service.compaction import compact, log, trim
from retrieval_store.service.watcher import LocalSnapshot, NamespaceWatcher
from retrieval_store.snapshots.cache import NodeCache, SnapshotFolder
from retrieval_store.stores.base import Store
from tests.retrieval_store.stores.store_kinds import StoreKind, names
from tests.support.retrieval_service import TARGET, publish
from tests.support.waiting import wait_until

BASE, ONE, TWO = [5, 6, 7, 8, 9], [5, 6, 70, 80, 90], [15, 16, 17, 18, 19]
pytestmark = pytest.mark.parametrize(
    "place", ["directory", pytest.param("redis", marks=pytest.mark.matrix)], indirect=True
)


class KilledError(BaseException):
    """No handler of the product catches it."""


def served(store: Store, cache: Path) -> tuple[LocalSnapshot | None, SnapshotFolder]:
    """What a service on this node serves of the store, and its folder."""
    folder = NodeCache(cache, store.url).snapshots(store.namespace)
    watcher = NamespaceWatcher(store, folder, TARGET.tokenizer_hash)
    watcher.look()
    return watcher.served, folder


def compact_served(store: Store, cache: Path) -> str:
    base, folder = served(store, cache)
    return compact(store, base, folder, TARGET, 1000)


def compact_and_die(store: Any, cache: Path) -> None:
    def die(*_: object) -> None:
        raise KilledError

    store.activate = die
    with pytest.raises(KilledError):
        compact_served(store, cache)
    del store.activate


def test_the_version_of_a_killed_compaction_expires(
    place: StoreKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = place.open()
    first = publish(store, [BASE], tmp_path)
    store.append([ONE, TWO], 100)
    compact_and_die(store, tmp_path / "cache")
    assert [(one.version == first, one.expires_at is None) for one in store.versions()] == [
        (True, True),
        (False, False),
    ]
    place.open(grace_seconds=0.0).retire(names(store)[1])
    monkeypatch.setattr(compaction, "UNUSED_S", 0.05)
    compact_and_die(store, tmp_path / "cache")
    wait_until(lambda: names(store) == [first])
    assert store.current().version == first
    assert [list(entry.tokens) for entry in log(store, "")] == [ONE, TWO]
    monkeypatch.undo()
    second = compact_served(store, tmp_path / "cache")
    assert [(one.version, one.is_current, one.expires_at is None) for one in store.versions()] == [
        (first, False, False),
        (second, True, True),
    ]


def test_the_log_is_cut_when_every_version_has_its_texts(place: StoreKind, tmp_path: Path) -> None:
    store, soon = place.open(), place.open(grace_seconds=0.05)
    publish(store, [BASE], tmp_path)
    store.append([ONE], 100)
    compact_served(soon, tmp_path / "cache")
    wait_until(lambda: len(names(store)) == 1)
    store.append([TWO], 100)
    compact_served(store, tmp_path / "cache")
    store.append([[25, 26, 27]], 100)
    assert trim(store)
    assert [list(entry.tokens) for entry in log(store, "")] == [TWO, [25, 26, 27]]  # a rollback needs the first
    for one in store.versions():
        if not one.is_current:
            soon.retire(one.version)
    wait_until(lambda: len(names(store)) == 1)
    trim(store)
    assert [list(entry.tokens) for entry in log(store, "")] == [[25, 26, 27]]
