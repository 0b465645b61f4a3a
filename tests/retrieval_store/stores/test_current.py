"""Which version is current, in every store: moved, rolled back, superseded, retired, expired."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from retrieval_store.errors import (
    ConflictError,
    DamagedSnapshotError,
    UnknownVersionError,
)
from retrieval_store.stores.base import Current
from tests.support.redis_server import wait_until
from tests.support.snapshot_folders import FILES, contents
from tests.support.store_kinds import Place, names, publish


def test_a_version_that_is_never_activated_expires(place: Place, snapshot: Callable[[int], Path]) -> None:
    store = place.open(unused_seconds=100.0)
    kept, unused = publish(store, snapshot(1)), store.publish(snapshot(2), 0.05)
    expires_at = store.versions()[0].expires_at
    assert expires_at is not None
    assert 0 < expires_at - time.time() <= 100.0
    wait_until(lambda: names(store) == [kept], "the version that has longer")
    with pytest.raises(UnknownVersionError, match=unused):
        store.activate(unused)
    store.activate(kept)
    store.publish(snapshot(1), 0.05)
    assert [one.expires_at for one in store.versions()] == [None]


def test_publishing_again_puts_the_expiry_off_and_never_forward(place: Place, snapshot: Callable[[int], Path]) -> None:
    store = place.open()
    version = publish(store, snapshot(1))
    seen = []
    for unused in (1000.0, 500.0, 5000.0, 1e6):
        assert store.publish(snapshot(1), unused) == version
        seen.append(store.versions()[0].expires_at or 0.0)
    assert max(seen[:3]) - min(seen[:3]) < 1.0  # a day is longer
    assert seen[3] - time.time() > 1e6 - 100
    place.alter(version, FILES[0], lambda raw: raw[:100])  # what is put in its place expires no sooner
    assert store.publish(snapshot(1), 0.05) == version
    assert abs((store.versions()[0].expires_at or 0.0) - seen[3]) < 1.0


def test_current_moves_by_compare_and_set(place: Place, snapshot: Callable[[int], Path]) -> None:
    store, other = place.open(), place.open()
    first, second = publish(store, snapshot(1)), publish(store, snapshot(2))
    assert store.activate(first, 0) == Current(first, 1)
    with pytest.raises(ConflictError, match=r"revision 0.*revision 1"):
        other.activate(second, 0)
    assert other.current() == Current(first, 1)
    assert other.activate(second, 1) == Current(second, 2)
    assert store.current() == Current(second, 2)
    moves = store.history()
    assert [(move.revision, move.version) for move in moves] == [(1, first), (2, second)]
    assert all(abs(move.at - time.time()) < 60 for move in moves)
    assert store.history(1) == moves[1:]


def test_activating_what_is_current_moves_nothing(place: Place, snapshot: Callable[[int], Path]) -> None:
    store = place.open()
    version = publish(store, snapshot(1))
    assert store.activate(version) == store.activate(version) == store.activate(version, 1) == Current(version, 1)
    with pytest.raises(ConflictError):
        store.activate(version, 0)
    assert len(store.history()) == 1


@pytest.mark.parametrize("version", ["0123456789abcdef", "../../../etc", "", "*", "a" * 10000, "\0"])
def test_versions_that_are_not_there_are_unknown(place: Place, version: str, tmp_path: Path) -> None:
    store = place.open()
    for attempt in (store.manifest, store.activate, lambda name: store.fetch(name, tmp_path / "local")):
        with pytest.raises(UnknownVersionError):
            attempt(version)


def test_rolling_back_twice_goes_back_twice(place: Place, snapshot: Callable[[int], Path]) -> None:
    store = place.open()
    first, second, third = (publish(store, snapshot(number)) for number in (1, 2, 3))
    for version in (first, second, third):
        store.activate(version)
    assert store.rollback() == Current(second, 4)
    assert store.rollback() == Current(first, 5)
    with pytest.raises(UnknownVersionError, match=f"before {first}"):
        store.rollback()
    assert store.current() == Current(first, 5)
    assert [move.version for move in store.history()] == [first, second, third, second, first]
    assert store.activate(third) == Current(third, 6)
    assert store.rollback() == Current(first, 7)


def test_there_is_nothing_to_roll_back_at_first(place: Place, snapshot: Callable[[int], Path]) -> None:
    store = place.open()
    with pytest.raises(UnknownVersionError):
        store.rollback()
    store.activate(publish(store, snapshot(1)))
    with pytest.raises(UnknownVersionError):
        store.rollback()


def test_rolling_back_passes_over_what_is_damaged(place: Place, snapshot: Callable[[int], Path]) -> None:
    store = place.open()
    first, second, third = (publish(store, snapshot(number)) for number in (1, 2, 3))
    for version in (first, second, third):
        store.activate(version)
    place.alter(second, FILES[0], lambda raw: raw[:-1])
    assert store.rollback() == Current(first, 4)


def test_superseded_versions_expire_after_the_grace_period(
    place: Place, snapshot: Callable[[int], Path], tmp_path: Path
) -> None:
    store, soon = place.open(grace_seconds=100.0), place.open(grace_seconds=0.05)
    first, second = publish(store, snapshot(1)), publish(store, snapshot(2))
    store.activate(first)
    local = store.fetch(first, tmp_path / "before")
    store.activate(second)
    listed = store.versions()
    assert [one.version for one in listed] == [first, second]
    expires_at = listed[0].expires_at
    assert expires_at is not None
    assert 0 < expires_at - time.time() <= 100.0
    assert listed[1].expires_at is None
    store.activate(first)
    soon.activate(second)
    wait_until(lambda: names(store) == [second], "one version that is left")
    for attempt in (store.manifest, store.activate, lambda name: store.fetch(name, tmp_path / "after")):
        with pytest.raises(UnknownVersionError, match=first):
            attempt(first)
    with pytest.raises(UnknownVersionError):
        store.rollback()
    assert contents(local) == contents(snapshot(1))  # what somebody reads stays
    publish(store, snapshot(1))
    assert names(store) == [second, first]
    assert store.rollback() == Current(first, 5)


def test_what_is_activated_again_stays_and_what_is_published_again_expires_later(
    place: Place, snapshot: Callable[[int], Path]
) -> None:
    store = place.open(grace_seconds=100.0)
    first, second, third = (publish(store, snapshot(number)) for number in (1, 2, 3))
    for version in (first, second, third):
        store.activate(version)
    assert [one.expires_at is None for one in store.versions()] == [False, False, True]
    store.activate(first)
    publish(store, snapshot(2))
    assert [one.expires_at is None for one in store.versions()] == [True, False, False]
    assert (store.versions()[1].expires_at or 0.0) - time.time() > 1000  # longer than the grace period
    assert store.current() == Current(first, 4)


def test_a_version_that_is_not_wanted_is_retired(place: Place, snapshot: Callable[[int], Path]) -> None:
    store = place.open(grace_seconds=100.0)
    first, second = publish(store, snapshot(1)), publish(store, snapshot(2))
    store.activate(first)
    with pytest.raises(ConflictError, match=f"{first} is current"):
        store.retire(first)
    store.retire(second)
    assert [one.expires_at is None for one in store.versions()] == [True, False]
    place.open(grace_seconds=0.0).retire(second)
    assert names(store) == [first]
    for version in (second, "no version"):
        with pytest.raises(UnknownVersionError, match=version):
            store.retire(version)
    assert store.current() == Current(first, 1)


def test_a_version_that_expires_under_a_reader_is_never_half_a_snapshot(
    place: Place, snapshot: Callable[[int], Path], tmp_path: Path
) -> None:
    store = place.open(grace_seconds=0.0)
    first, second = publish(store, snapshot(1)), publish(store, snapshot(2))
    store.activate(first)
    reader = place.open()
    begun = reader._deliver  # type: ignore[attr-defined]

    def deliver(source: str, name: str, entry: object, path: Path) -> None:
        begun(source, name, entry, path)
        if name == FILES[0]:
            store.activate(second)
            store.versions()

    reader._deliver = deliver  # type: ignore[attr-defined]
    with pytest.raises((UnknownVersionError, DamagedSnapshotError), match=first):
        reader.fetch(first, tmp_path / "local")
    assert list((tmp_path / "local").iterdir()) == []


def test_racing_processes_have_one_winner_per_revision(place: Place, snapshot: Callable[[int], Path]) -> None:
    store = place.open()
    versions = [publish(store, snapshot(number)) for number in (1, 2)]
    won = place.together(*[("race", (versions, 3))] * 3)
    assert sorted(revision for mine in won for revision in mine) == list(range(1, 10))
    history = store.history()
    assert [move.revision for move in history] == list(range(1, 10))
    assert [move.version for move in history] == [versions[number % 2] for number in range(9)]
    assert store.current() == Current(history[-1].version, 9)
