"""Every store moves ``current`` by compare-and-set, rolls it back, and lets superseded versions expire."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from retrieval_store.errors import ConflictError, DamagedSnapshotError, UnknownVersionError
from retrieval_store.stores.base import Current, Store
from tests.support.snapshot_folders import FILES, contents
from tests.support.store_kinds import Place, names, publish, win_moves
from tests.support.waiting import wait_until

Snapshots = Callable[[int], Path]
SOON = 0.05  # seconds until a version expires


def lives(store: Store) -> list[float | None]:
    """Seconds until each version expires; None: it stays."""
    return [None if one.expires_at is None else one.expires_at - time.time() for one in store.versions()]


def test_current_moves_by_compare_and_set(place: Place, snapshot: Snapshots) -> None:
    store, other = place.open(), place.open()
    first, second = publish(store, snapshot(1)), publish(store, snapshot(2))
    assert store.activate(first, 0) == Current(first, 1)
    with pytest.raises(ConflictError, match=r"revision 0.*revision 1"):
        other.activate(second, 0)
    assert store.activate(first) == store.activate(first, 1) == other.current() == Current(first, 1)
    with pytest.raises(ConflictError):
        store.activate(first, 0)
    assert other.activate(second, 1) == Current(second, 2)
    assert store.current() == Current(second, 2)
    moves = store.history()
    assert [(move.revision, move.version) for move in moves] == [(1, first), (2, second)]
    assert moves[0].at <= moves[1].at <= time.time()
    assert store.history(1) == moves[1:]


def test_processes_that_race_have_one_winner_per_revision(place: Place, snapshot: Snapshots) -> None:
    store = place.open()
    versions = [publish(store, snapshot(number)) for number in (1, 2)]
    won = place.together(win_moves, *[(versions, 3)] * 3)
    assert sorted(revision for mine in won for revision in mine) == list(range(1, 10))
    history = store.history()
    assert [move.revision for move in history] == list(range(1, 10))
    assert [move.version for move in history] == [versions[number % 2] for number in range(9)]
    assert store.current() == Current(history[-1].version, 9)


def test_versions_that_are_not_there_are_unknown(place: Place, tmp_path: Path) -> None:
    store = place.open()
    for version in ("0123456789abcdef", "../../../etc", "", "*", "a" * 10000, "\0"):
        for use in (store.manifest, store.activate, store.retire, lambda name: store.fetch(name, tmp_path / "local")):
            with pytest.raises(UnknownVersionError):
                use(version)


def test_rolling_back_skips_a_damaged_version(place: Place, snapshot: Snapshots) -> None:
    store = place.open()
    first, second, third = (publish(store, snapshot(number)) for number in (1, 2, 3))
    for version in (first, second, third):
        store.activate(version)
    place.alter(second, FILES[0], lambda raw: raw[:-1])
    assert store.rollback() == Current(first, 4)


def test_a_version_that_is_never_activated_expires(place: Place, snapshot: Snapshots) -> None:
    store = place.open(unused_seconds=10_000.0)
    kept, unused = publish(store, snapshot(1)), store.publish(snapshot(2), SOON)
    assert 0 < (lives(store)[0] or 0) <= 10_000
    wait_until(lambda: names(store) == [kept])
    with pytest.raises(UnknownVersionError, match=unused):
        store.activate(unused)
    store.activate(kept)
    store.publish(snapshot(1), SOON)
    assert lives(store) == [None]


def test_publishing_again_never_brings_the_expiry_forward(place: Place, snapshot: Snapshots) -> None:
    store = place.open(unused_seconds=1e6)
    version = publish(store, snapshot(1))
    for unused, at_least in ((SOON, 5e5), (1e4, 5e5), (1e7, 5e6), (SOON, 5e6)):
        assert store.publish(snapshot(1), unused) == version
        assert (lives(store)[0] or 0) > at_least
    place.alter(version, FILES[0], lambda raw: raw[:100])
    store.publish(snapshot(1), SOON)  # replaces the damaged one
    assert (lives(store)[0] or 0) > 5e6


def test_a_superseded_version_expires_after_the_grace_period(place: Place, snapshot: Snapshots, tmp_path: Path) -> None:
    store, soon = place.open(grace_seconds=10_000.0), place.open(grace_seconds=SOON)
    first, second = publish(store, snapshot(1)), publish(store, snapshot(2))
    store.activate(first)
    local = store.fetch(first, tmp_path / "before")
    store.activate(second)
    superseded, current = lives(store)
    assert 0 < (superseded or 0) <= 10_000
    assert current is None
    store.activate(first)
    soon.activate(second)
    wait_until(lambda: names(store) == [second])
    for use in (store.manifest, store.activate, lambda name: store.fetch(name, tmp_path / "after")):
        with pytest.raises(UnknownVersionError, match=first):
            use(first)
    with pytest.raises(UnknownVersionError):
        store.rollback()
    assert contents(local) == contents(snapshot(1))  # a local copy stays
    publish(store, snapshot(1))
    assert names(store) == [second, first]
    assert store.rollback() == Current(first, 5)


def test_a_version_that_is_activated_or_published_again_gets_a_new_expiry(place: Place, snapshot: Snapshots) -> None:
    store = place.open(grace_seconds=10_000.0, unused_seconds=1e6)
    first, second, third = (publish(store, snapshot(number)) for number in (1, 2, 3))
    for version in (first, second, third):
        store.activate(version)
    assert [life is None for life in lives(store)] == [False, False, True]
    store.activate(first)
    publish(store, snapshot(2))
    left = lives(store)
    assert [life is None for life in left] == [True, False, False]
    assert (left[1] or 0) > 5e5
    assert store.current() == Current(first, 4)


def test_a_retired_version_expires_and_the_current_one_cannot_be_retired(place: Place, snapshot: Snapshots) -> None:
    store = place.open(grace_seconds=10_000.0)
    first, second = publish(store, snapshot(1)), publish(store, snapshot(2))
    store.activate(first)
    with pytest.raises(ConflictError, match=f"{first} is current"):
        store.retire(first)
    store.retire(second)
    left = lives(store)
    assert left[0] is None
    assert 0 < (left[1] or 0) <= 10_000
    place.open(grace_seconds=0.0).retire(second)
    assert names(store) == [first]
    with pytest.raises(UnknownVersionError, match=second):
        store.retire(second)
    assert store.current() == Current(first, 1)


def test_a_version_that_expires_while_it_is_fetched_leaves_no_half_snapshot(
    place: Place, snapshot: Snapshots, tmp_path: Path
) -> None:
    store = place.open(grace_seconds=0.0)
    first, second = publish(store, snapshot(1)), publish(store, snapshot(2))
    store.activate(first)
    reader = place.open()
    deliver = reader._deliver  # type: ignore[attr-defined]

    def supersede_after_one_file(source: str, name: str, entry: object, path: Path) -> None:
        deliver(source, name, entry, path)
        if name == FILES[0]:
            store.activate(second)
            store.versions()

    reader._deliver = supersede_after_one_file  # type: ignore[attr-defined]
    with pytest.raises((UnknownVersionError, DamagedSnapshotError), match=first):
        reader.fetch(first, tmp_path / "local")
    assert list((tmp_path / "local").iterdir()) == []
