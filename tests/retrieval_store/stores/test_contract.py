"""Every store publishes and verifies snapshots, moves ``current``, expires versions and keeps a log in the same way."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from retrieval_store.errors import (
    ConflictError,
    DamagedSnapshotError,
    ForeignSnapshotError,
    StoreError,
    UnknownVersionError,
)
from retrieval_store.snapshots.snapshot import MANIFEST, read_manifest, verify
from retrieval_store.stores.base import Store
from retrieval_store.stores.records import Current
from tests.retrieval_store.stores.store_kinds import (
    StoreKind,
    append_each,
    fetch_into,
    names,
    publish,
    publish_often,
    win_moves,
)
from tests.support.snapshot_folders import FILES, TOKENIZER, contents
from tests.support.waiting import LIMIT_S, wait_until

Snapshots = Callable[[int], Path]
SOON = 0.05  # seconds until a version expires
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda raw: raw[: len(raw) // 2],
    "one bit": lambda raw: bytes([raw[0] ^ 4]) + raw[1:],
    "longer": lambda raw: raw + b"more",
    "empty": lambda raw: b"",
}


def test_a_published_snapshot_comes_back_byte_for_byte(place: StoreKind, snapshot: Snapshots, tmp_path: Path) -> None:
    before = contents(snapshot(1))
    version = publish(place.open(), snapshot(1))
    shutil.rmtree(snapshot(1))
    reader = place.open()
    fetched = reader.fetch(version, tmp_path / "local")
    assert fetched == tmp_path / "local" / version
    assert contents(fetched) == before
    assert verify(fetched, TOKENIZER) == reader.manifest(version)
    assert [path.name for path in (tmp_path / "local").iterdir()] == [version]
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreError, match="cannot be written"):
        reader.fetch(version, tmp_path / "file" / "below")


def test_a_local_copy_is_used_without_the_store_as_long_as_it_is_whole(
    place: StoreKind, snapshot: Snapshots, tmp_path: Path
) -> None:
    store, another = place.open(), place.open(namespace="another")
    version = publish(store, snapshot(1))
    fetched = store.fetch(version, tmp_path / "local")
    written_at = (fetched / FILES[0]).stat().st_mtime_ns
    assert another.fetch(version, tmp_path / "local") == fetched
    assert (fetched / FILES[0]).stat().st_mtime_ns == written_at
    (fetched / FILES[0]).unlink()
    (fetched / FILES[0]).write_bytes(b"short")
    with pytest.raises(UnknownVersionError):
        another.fetch(version, tmp_path / "local")
    assert len(contents(fetched)) == len(contents(snapshot(1)))  # the old copy stays until there is a better one
    assert contents(store.fetch(version, tmp_path / "local")) == contents(snapshot(1))


def test_publishing_lists_a_version_and_does_not_move_current(place: StoreKind, snapshot: Snapshots) -> None:
    store = place.open()
    assert (store.current(), store.versions(), store.history()) == (Current("", 0), [], [])
    versions = [publish(store, snapshot(number)) for number in (1, 2, 3, 1)]
    assert names(store) == versions[:3]
    assert store.current() == Current("", 0)
    store.activate(versions[1])
    assert [(one.is_current, one.expires_at is None) for one in store.versions()] == [
        (False, False),
        (True, True),
        (False, False),
    ]


def test_a_snapshot_that_is_damaged_before_or_during_the_upload_is_not_listed(
    place: StoreKind, snapshot: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = place.open()
    write = store._write  # type: ignore[attr-defined]

    def reverse(upload: str, name: str, blocks: Iterator[bytes]) -> None:
        write(upload, name, (block[::-1] for block in blocks))

    monkeypatch.setattr(store, "_write", reverse)
    with pytest.raises(DamagedSnapshotError, match=FILES[0]):
        store.publish(snapshot(1))
    monkeypatch.undo()
    (snapshot(1) / FILES[1]).write_bytes(b"cut")
    with pytest.raises(DamagedSnapshotError, match=FILES[1]):
        store.publish(snapshot(1))
    assert store.versions() == []


def test_a_snapshot_of_another_tokenizer_is_refused_by_name(
    place: StoreKind, snapshot: Snapshots, tmp_path: Path
) -> None:
    careless, careful = place.open(), place.open(tokenizer_hash="another")
    with pytest.raises(ForeignSnapshotError, match=TOKENIZER):
        careful.publish(snapshot(1))
    version = publish(careless, snapshot(1))
    for use in (careful.activate, lambda name: careful.fetch(name, tmp_path / "local")):
        with pytest.raises(ForeignSnapshotError, match=rf"{version}.*{TOKENIZER}.*another"):
            use(version)
    assert careful.current() == Current("", 0)
    careless.fetch(version, tmp_path / "local")
    with pytest.raises(ForeignSnapshotError, match=TOKENIZER):  # the local copy is checked as well
        careful.fetch(version, tmp_path / "local")
    assert names(careful) == [version]


def test_a_version_with_a_wrong_manifest_is_refused_and_listed_with_the_reason(
    place: StoreKind, snapshot: Snapshots, tmp_path: Path
) -> None:
    store = place.open()
    new, old = publish(store, snapshot(1)), publish(store, snapshot(2))
    store.activate(old)
    own = (snapshot(1) / MANIFEST).read_bytes()
    for raw, error, said in (
        (own.replace(b'"format_version": ', b'"format_version": 9'), ForeignSnapshotError, f"{new}.*version 9"),
        (b'{"format": "spectra-snapshot", "format_version": 99}', ForeignSnapshotError, new),
        (b"\xff", DamagedSnapshotError, new),
        (b"", DamagedSnapshotError, new),
        ((snapshot(2) / MANIFEST).read_bytes(), DamagedSnapshotError, f"{new}.*{old}"),
    ):
        place.alter(new, MANIFEST, lambda _, raw=raw: raw)  # type: ignore[misc]
        for use in (store.manifest, store.activate, lambda name: store.fetch(name, tmp_path / "local")):
            with pytest.raises(error, match=said):
                use(new)
        first, second = store.versions()
        assert (first.version, first.is_current, first.manifest) == (new, False, None)
        assert new in first.problem
        assert (second.version, second.is_current, second.manifest) == (old, True, store.manifest(old))
    assert store.current() == Current(old, 1)
    assert not (tmp_path / "local" / new).exists()


def test_a_damaged_version_is_refused_and_publishing_it_again_repairs_it(
    place: StoreKind, snapshot: Snapshots, tmp_path: Path
) -> None:
    store = place.open()
    old, new = publish(store, snapshot(1)), publish(store, snapshot(2))
    store.activate(old)
    for change in DAMAGE.values():
        place.alter(new, FILES[0], change)
        for use in (store.activate, lambda name: store.fetch(name, tmp_path / "local")):
            with pytest.raises(DamagedSnapshotError, match=rf"{FILES[0]} of .*{new}"):
                use(new)
        assert list((tmp_path / "local").iterdir()) == []
        publish(store, snapshot(2))
    place.alter(new, MANIFEST, lambda raw: raw[:100])
    publish(store, snapshot(2))
    assert contents(store.fetch(new, tmp_path / "local")) == contents(snapshot(2))
    assert store.current() == Current(old, 1)
    assert store.activate(new) == Current(new, 2)
    assert names(store) == [old, new]


def test_an_upload_does_not_expire_while_it_is_read_back(place: StoreKind, snapshot: Snapshots) -> None:
    store, other = (place.open(upload_seconds=10_000.0) for _ in range(2))
    blocks, n_aged = store._blocks, 0  # type: ignore[attr-defined]

    def slowly(*arguments: object) -> Iterator[bytes]:
        nonlocal n_aged
        for block in blocks(*arguments):
            place.age_uploads(6000)
            n_aged += 1
            other._abandon(other._begin(b"{}"))  # type: ignore[attr-defined]  # removes what expired
            yield block

    store._blocks = slowly  # type: ignore[attr-defined]
    version = publish(store, snapshot(1))
    assert names(store) == [version]
    assert n_aged >= 2


def test_an_abandoned_upload_expires_and_is_never_a_version(place: StoreKind, snapshot: Snapshots) -> None:
    store, folder = place.open(upload_seconds=10_000.0), snapshot(1)
    version = read_manifest(folder).version
    upload = store._begin((folder / MANIFEST).read_bytes())  # type: ignore[attr-defined]
    store._write(upload, FILES[0], iter([b"half"]))  # type: ignore[attr-defined]
    assert store.versions() == []
    with pytest.raises(UnknownVersionError):
        store.activate(version)
    place.age_uploads(20_000)
    publish(store, folder)
    assert store.activate(version).revision == 1
    assert store._raw_manifest(upload) is None  # type: ignore[attr-defined]


def test_processes_that_publish_and_fetch_at_once_do_not_harm_each_other(
    place: StoreKind, snapshot: Snapshots, tmp_path: Path
) -> None:
    folders = [snapshot(1), snapshot(1), snapshot(2)]
    versions = place.together(publish_often, *((str(folder), 3) for folder in folders))
    assert sorted(names(place.open())) == sorted(set(versions))
    place.together(fetch_into, *((version, str(tmp_path / "local")) for version in versions))
    assert {path.name for path in (tmp_path / "local").iterdir()} == set(versions)
    for version, folder in zip(versions, folders, strict=True):
        assert contents(tmp_path / "local" / version) == contents(folder)


def lives(store: Store) -> list[float | None]:
    """Seconds until each version expires; None: it stays."""
    return [None if one.expires_at is None else one.expires_at - time.time() for one in store.versions()]


def test_current_moves_by_compare_and_set(place: StoreKind, snapshot: Snapshots) -> None:
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
    third, verify = publish(store, snapshot(3)), store._verified  # type: ignore[attr-defined]
    store._verified = lambda version: (other.activate(first), verify(version))[1]  # type: ignore[attr-defined]
    with pytest.raises(ConflictError):  # another store is faster
        store.activate(third)
    assert other.current() == Current(first, 3)


def test_processes_that_race_have_one_winner_per_revision(place: StoreKind, snapshot: Snapshots) -> None:
    store = place.open()
    versions = [publish(store, snapshot(number)) for number in (1, 2)]
    won = place.together(win_moves, *[(versions, 3)] * 3)
    assert sorted(revision for mine in won for revision in mine) == list(range(1, 10))
    history = store.history()
    assert [move.revision for move in history] == list(range(1, 10))
    assert [move.version for move in history] == [versions[number % 2] for number in range(9)]
    assert store.current() == Current(history[-1].version, 9)


def test_versions_that_are_not_there_are_unknown(place: StoreKind, tmp_path: Path) -> None:
    store = place.open()
    for version in ("0123456789abcdef", "../../../etc", "", "*", "a" * 10000, "\0"):
        for use in (store.manifest, store.activate, store.retire, lambda name: store.fetch(name, tmp_path / "local")):
            with pytest.raises(UnknownVersionError):
                use(version)


def test_rolling_back_skips_a_damaged_version(place: StoreKind, snapshot: Snapshots) -> None:
    store = place.open()
    first, second, third = (publish(store, snapshot(number)) for number in (1, 2, 3))
    for version in (first, second, third):
        store.activate(version)
    place.alter(second, FILES[0], lambda raw: raw[:-1])
    assert store.rollback() == Current(first, 4)


def test_a_version_that_is_never_activated_expires(place: StoreKind, snapshot: Snapshots) -> None:
    store = place.open(unused_seconds=10_000.0)
    kept, unused = publish(store, snapshot(1)), store.publish(snapshot(2), SOON)
    assert 0 < (lives(store)[0] or 0) <= 10_000
    wait_until(lambda: names(store) == [kept])
    with pytest.raises(UnknownVersionError, match=unused):
        store.activate(unused)
    store.activate(kept)
    store.publish(snapshot(1), SOON)
    assert lives(store) == [None]


def test_publishing_again_never_brings_the_expiry_forward(place: StoreKind, snapshot: Snapshots) -> None:
    store = place.open(unused_seconds=1e6)
    version = publish(store, snapshot(1))
    for unused, at_least in ((SOON, 5e5), (1e4, 5e5), (1e7, 5e6), (SOON, 5e6)):
        assert store.publish(snapshot(1), unused) == version
        assert (lives(store)[0] or 0) > at_least
    place.alter(version, FILES[0], lambda raw: raw[:100])
    store.publish(snapshot(1), SOON)  # replaces the damaged one
    assert (lives(store)[0] or 0) > 5e6


def test_a_superseded_version_expires_after_the_grace_period(
    place: StoreKind, snapshot: Snapshots, tmp_path: Path
) -> None:
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


def test_a_version_that_is_activated_or_published_again_gets_a_new_expiry(
    place: StoreKind, snapshot: Snapshots
) -> None:
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


def test_a_retired_version_expires_and_the_current_one_cannot_be_retired(place: StoreKind, snapshot: Snapshots) -> None:
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
    place: StoreKind, snapshot: Snapshots, tmp_path: Path
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


def tokens(store: Store, **selection: str) -> list[list[int]]:
    return [list(entry.tokens) for entry in store.entries(**selection)]  # type: ignore[arg-type]


def test_the_log_keeps_texts_in_order_until_it_is_trimmed(place: StoreKind) -> None:
    store = place.open()
    assert store.entries() == []
    texts = [[1, 2, 3], [], [262_143, 2**31 - 1, 0]]
    store.append(texts[:2], limit=100)
    store.append(texts[2:], limit=100)
    store.append([], limit=100)
    entries = place.open().entries()
    assert [list(entry.tokens) for entry in entries] == texts
    assert store.entries(limit=2) == entries[:2]
    assert store.entries(after=entries[0].id) == entries[1:]
    assert store.entries(after=entries[2].id) == []
    store.trim(entries[1].id)
    assert store.entries() == entries[2:]
    store.trim(entries[2].id)
    store.trim("")
    assert store.entries() == []
    store.append([[7]], limit=100)
    assert tokens(store, after=entries[2].id) == [[7]]


def test_the_log_drops_the_oldest_texts_beyond_its_limit(place: StoreKind) -> None:
    store = place.open()
    for first in range(0, 1000, 250):
        store.append([[number] for number in range(first, first + 250)], limit=50)
    kept = [entry.tokens[0] for entry in store.entries()]
    assert 50 <= len(kept) <= 50 + 150  # Redis removes whole nodes of its stream, of 100 entries
    assert kept == list(range(1000 - len(kept), 1000))


def test_the_log_takes_texts_of_several_processes(place: StoreKind) -> None:
    mine = [[[number, text] for text in range(20)] for number in range(3)]
    place.together(append_each, *((texts,) for texts in mine))
    entries = place.open().entries()
    for number in range(3):
        assert [list(entry.tokens) for entry in entries if entry.tokens[0] == number] == mine[number]
    assert len({entry.id for entry in entries}) == len(entries) == 60


def test_the_log_refuses_wrong_tokens_limits_and_ids(place: StoreKind) -> None:
    store = place.open()
    for wrong in ([-1], [2**31], [[1]]):
        with pytest.raises(ValueError, match="token ids"):
            store.append([wrong], limit=10)  # type: ignore[list-item]
    for limit in (0, -1):
        with pytest.raises(ValueError, match="limit"):
            store.append([[1]], limit=limit)
        with pytest.raises(ValueError, match="limit"):
            store.entries(limit=limit)
    for name in ("abc", "1", "1-2-3", "$"):
        for use in (store.entries, store.trim):
            with pytest.raises(StoreError, match="not the id"):
                use(name)
    assert store.entries() == []


def test_a_namespace_sees_nothing_of_another(place: StoreKind, snapshot: Snapshots) -> None:
    own, shared = place.open(), place.open(namespace="")
    version = publish(own, snapshot(1))
    own.activate(version)
    assert publish(shared, snapshot(1)) in names(place.open(namespace=""))
    ends = ("/x", "{x}", "%2Fx", ":x", "ä", "*", " ", "..")
    others = [
        place.open(namespace=name)
        for name in (*(f"{place.namespace}{end}" for end in ends), "..", ".", "@shared", "shared")
    ]
    for number, store in enumerate(others):
        assert (store.current(), store.versions(), store.entries(), store.history()) == (Current("", 0), [], [], [])
        with pytest.raises(UnknownVersionError):
            store.fetch(version, Path("never written"))
        store.append([[number]], limit=10)
    for number, store in enumerate(others):
        assert tokens(store) == [[number]]
        store.trim(store.entries()[-1].id)  # some of these namespaces are shared by tests
    assert own.entries() == []


def opened_and_drained(place: StoreKind) -> Store:
    """A store whose ``wait`` has returned all hints so far."""
    store = place.open()
    store.append([[1]], 10)
    assert store.wait(LIMIT_S)
    wait_until(lambda: not store.wait(0.0))
    return store


def test_waiting_ends_when_another_store_changes_something(place: StoreKind, snapshot: Snapshots) -> None:
    other = place.open()
    version = publish(other, snapshot(1))
    store = opened_and_drained(place)
    for change in (lambda: other.activate(version), lambda: other.append([[1]], 10)):
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(store.wait, 10 * LIMIT_S)
            change()
            assert waiting.result(LIMIT_S)
        wait_until(lambda: not store.wait(0.0))


def test_closing_ends_a_wait(place: StoreKind) -> None:
    store = opened_and_drained(place)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(store.wait, 10 * LIMIT_S)
        store.close()
        store.close()
        assert not waiting.result(LIMIT_S)
