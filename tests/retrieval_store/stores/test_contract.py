"""What every store does, whatever it keeps snapshots in."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
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
from retrieval_store.stores.base import Current, Store
from tests.support.redis_server import wait_until
from tests.support.snapshot_folders import FILES, TOKENIZER, contents, make_snapshot
from tests.support.store_kinds import Place

ABANDONED = 0.5  # seconds, where an upload is to expire


@pytest.fixture
def snapshot(tmp_path: Path) -> Callable[[int], Path]:
    """A folder with the snapshot of this number."""

    def make(number: int) -> Path:
        folder = tmp_path / "built" / str(number)
        if not folder.exists():
            make_snapshot(folder, number)
        return folder

    return make


def publish(store: Store, folder: Path) -> str:
    version = store.publish(folder)
    assert version == read_manifest(folder).version
    return version


def names(store: Store) -> list[str]:
    return [one.version for one in store.versions()]


def test_a_published_snapshot_comes_back_byte_for_byte(
    place: Place, snapshot: Callable[[int], Path], tmp_path: Path
) -> None:
    version = publish(place.open(), snapshot(1))
    reader = place.open()
    fetched = reader.fetch(version, tmp_path / "local")
    assert fetched == tmp_path / "local" / version
    assert contents(fetched) == contents(snapshot(1))
    assert verify(fetched, TOKENIZER) == reader.manifest(version)
    assert [path.name for path in (tmp_path / "local").iterdir()] == [version]


def test_fetching_again_needs_no_store(place: Place, snapshot: Callable[[int], Path], tmp_path: Path) -> None:
    store = place.open()
    version = publish(store, snapshot(1))
    fetched = store.fetch(version, tmp_path / "local")
    before = (fetched / FILES[0]).stat().st_mtime_ns
    assert place.open(namespace="another").fetch(version, tmp_path / "local") == fetched
    assert (fetched / FILES[0]).stat().st_mtime_ns == before


def test_a_local_copy_that_is_not_whole_is_fetched_again(
    place: Place, snapshot: Callable[[int], Path], tmp_path: Path
) -> None:
    store = place.open()
    version = publish(store, snapshot(1))
    fetched = store.fetch(version, tmp_path / "local")
    (fetched / FILES[0]).unlink()
    (fetched / FILES[0]).write_bytes(b"short")
    with pytest.raises(UnknownVersionError):  # what is there stays until there is something better
        place.open(namespace="another").fetch(version, tmp_path / "local")
    assert len(contents(fetched)) == len(contents(snapshot(1)))
    assert contents(store.fetch(version, tmp_path / "local")) == contents(snapshot(1))


def test_publishing_lists_versions_and_does_not_move_current(place: Place, snapshot: Callable[[int], Path]) -> None:
    store = place.open()
    assert (store.current(), store.versions(), store.history()) == (Current("", 0), [], [])
    versions = [publish(store, snapshot(number)) for number in (1, 2, 3, 1)]
    assert names(store) == versions[:3]
    assert store.current() == Current("", 0)
    store.activate(versions[1])
    assert [one.is_current for one in store.versions()] == [False, True, False]
    assert [one.expires_at is None for one in store.versions()] == [False, True, False]


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


def test_a_damaged_folder_is_not_published(place: Place, snapshot: Callable[[int], Path]) -> None:
    (snapshot(1) / FILES[1]).write_bytes(b"cut")
    store = place.open()
    with pytest.raises(DamagedSnapshotError, match=FILES[1]):
        store.publish(snapshot(1))
    assert store.versions() == []


def test_what_arrives_changed_is_not_listed(
    place: Place, snapshot: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = place.open()
    write = store._write  # type: ignore[attr-defined]

    def changing(upload: str, name: str, blocks: Iterator[bytes]) -> None:
        write(upload, name, (block[::-1] for block in blocks))

    monkeypatch.setattr(store, "_write", changing)
    with pytest.raises(DamagedSnapshotError, match=FILES[0]):
        store.publish(snapshot(1))
    assert store.versions() == []


def test_snapshots_of_another_tokenizer_are_refused_by_name(
    place: Place, snapshot: Callable[[int], Path], tmp_path: Path
) -> None:
    careless, careful = place.open(), place.open(tokenizer_hash="another")
    with pytest.raises(ForeignSnapshotError, match=TOKENIZER):
        careful.publish(snapshot(1))
    version = publish(careless, snapshot(1))
    for attempt in (careful.activate, lambda name: careful.fetch(name, tmp_path / "local")):
        with pytest.raises(ForeignSnapshotError, match=rf"{version}.*{TOKENIZER}.*another"):
            attempt(version)
    assert careful.current() == Current("", 0)
    careless.fetch(version, tmp_path / "local")
    with pytest.raises(ForeignSnapshotError, match=TOKENIZER):  # the local copy is looked at as well
        careful.fetch(version, tmp_path / "local")
    assert names(careful) == [version]


def test_snapshots_of_another_format_version_are_refused_by_name(
    place: Place, snapshot: Callable[[int], Path], tmp_path: Path
) -> None:
    store = place.open()
    old, new = publish(store, snapshot(1)), publish(store, snapshot(2))
    store.activate(old)
    place.alter(new, MANIFEST, lambda raw: raw.replace(b'"format_version": ', b'"format_version": 9'))
    for attempt in (store.manifest, store.activate, lambda name: store.fetch(name, tmp_path / "local")):
        with pytest.raises(ForeignSnapshotError, match=f"{new}.*version 9"):
            attempt(new)
    assert store.current() == Current(old, 1)
    assert not (tmp_path / "local" / new).exists()


DAMAGE = {
    "truncated": lambda raw: raw[: len(raw) // 2],
    "one bit": lambda raw: bytes([raw[0] ^ 4]) + raw[1:],
    "longer": lambda raw: raw + b"more",
    "empty": lambda raw: b"",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_version_is_refused_by_name_and_the_old_one_stays(
    place: Place, snapshot: Callable[[int], Path], tmp_path: Path, how: str
) -> None:
    store = place.open()
    old, new = publish(store, snapshot(1)), publish(store, snapshot(2))
    store.activate(old)
    place.alter(new, FILES[0], DAMAGE[how])
    for attempt in (store.activate, lambda name: store.fetch(name, tmp_path / "local")):
        with pytest.raises(DamagedSnapshotError, match=rf"{FILES[0]} of .*{new}"):
            attempt(new)
    assert store.current() == Current(old, 1)
    assert list((tmp_path / "local").iterdir()) == []


@pytest.mark.parametrize("raw", [b'{"format": "spectra-snapshot", "format_version": 99}', b"\xff", b""], ids=str)
def test_a_version_that_cannot_be_read_is_listed_with_the_reason(
    raw: bytes, place: Place, snapshot: Callable[[int], Path]
) -> None:
    store = place.open()
    old, new = publish(store, snapshot(1)), publish(store, snapshot(2))
    store.activate(new)
    place.alter(old, MANIFEST, lambda _: raw)
    listed = store.versions()
    assert [(one.version, one.is_current) for one in listed] == [(old, False), (new, True)]
    assert listed[0].manifest is None
    assert old in listed[0].problem
    assert (listed[1].manifest, listed[1].problem) == (store.manifest(new), "")


def test_an_upload_lives_on_while_it_is_read_back(place: Place, snapshot: Callable[[int], Path]) -> None:
    store, other = place.open(upload_seconds=1.0), place.open(upload_seconds=1.0)
    blocks, pauses = store._blocks, [0.6, 0.6]  # type: ignore[attr-defined]

    def slowly(*arguments: object) -> Iterator[bytes]:
        for block in blocks(*arguments):
            if pauses:
                time.sleep(pauses.pop())
                other._abandon(other._begin("0" * 16, b"{}"))  # type: ignore[attr-defined]  # removes what expired
            yield block

    store._blocks = slowly  # type: ignore[attr-defined]
    version = publish(store, snapshot(1))
    assert names(store) == [version]
    assert pauses == []


def test_an_entry_that_is_no_text_does_not_hold_up_what_is_behind_it(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    store = place.open()
    store.append([[1, 2], [3], [4], [5]], limit=10)
    place.alter_entries({1: b"12345", 2: b"\xff\xff\xff\xff"})
    for _ in range(2):
        assert [list(entry.tokens) for entry in store.entries()] == [[1, 2], [], [], [5]]
    warned = [record.getMessage() for record in caplog.records if "does not decode" in record.getMessage()]
    assert len(warned) == 1
    assert store.entries()[1].id in warned[0]


def test_publishing_a_version_again_repairs_it(place: Place, snapshot: Callable[[int], Path], tmp_path: Path) -> None:
    store = place.open()
    version = publish(store, snapshot(1))
    for name in (FILES[0], MANIFEST):
        place.alter(version, name, lambda raw: raw[:100])
        with pytest.raises(DamagedSnapshotError):
            store.activate(version)
        publish(store, snapshot(1))
        assert store.activate(version) == Current(version, 1)
    assert contents(store.fetch(version, tmp_path / "local")) == contents(snapshot(1))
    assert names(store) == [version]


def test_a_manifest_that_is_not_the_versions_own_is_refused(place: Place, snapshot: Callable[[int], Path]) -> None:
    store = place.open()
    first, second = publish(store, snapshot(1)), publish(store, snapshot(2))
    place.alter(second, MANIFEST, lambda raw: (snapshot(1) / MANIFEST).read_bytes())
    with pytest.raises(DamagedSnapshotError, match=f"{second}.*{first}"):
        store.activate(second)


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


def test_an_abandoned_upload_is_never_a_version(place: Place, snapshot: Callable[[int], Path]) -> None:
    store = place.open(upload_seconds=ABANDONED)
    folder = snapshot(1)
    version = read_manifest(folder).version
    upload = store._begin(version, (folder / MANIFEST).read_bytes())  # type: ignore[attr-defined]
    store._write(upload, FILES[0], iter([b"half"]))  # type: ignore[attr-defined]
    assert store.versions() == []
    with pytest.raises(UnknownVersionError):
        store.activate(version)
    time.sleep(ABANDONED + 0.1)
    publish(place.open(), folder)
    assert store.activate(version).revision == 1
    assert store._raw_manifest(upload) is None  # type: ignore[attr-defined]


def test_racing_processes_have_one_winner_per_revision(place: Place, snapshot: Callable[[int], Path]) -> None:
    store = place.open()
    versions = [publish(store, snapshot(number)) for number in (1, 2)]
    won = place.together(*[("race", (versions, 3))] * 3)
    assert sorted(revision for mine in won for revision in mine) == list(range(1, 10))
    history = store.history()
    assert [move.revision for move in history] == list(range(1, 10))
    assert [move.version for move in history] == [versions[number % 2] for number in range(9)]
    assert store.current() == Current(history[-1].version, 9)


def test_two_publishers_at_once_do_not_harm_each_other(
    place: Place, snapshot: Callable[[int], Path], tmp_path: Path
) -> None:
    same, other = str(snapshot(1)), str(snapshot(2))
    answers = place.together(("publish", (same, 3)), ("publish", (same, 3)), ("publish", (other, 3)))
    store = place.open()
    assert sorted(names(store)) == sorted({answers[0][0], answers[2][0]})
    for folder in (Path(same), Path(other)):
        version = read_manifest(folder).version
        assert contents(store.fetch(version, tmp_path / "local")) == contents(folder)


def test_processes_that_fetch_into_one_folder_share_what_comes(
    place: Place, snapshot: Callable[[int], Path], tmp_path: Path
) -> None:
    version = publish(place.open(), snapshot(1))
    place.together(*[("fetch", (version, str(tmp_path / "local")))] * 3)
    assert [path.name for path in (tmp_path / "local").iterdir()] == [version]
    assert contents(tmp_path / "local" / version) == contents(snapshot(1))


def test_the_log_keeps_texts_in_order(place: Place) -> None:
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
    assert [list(entry.tokens) for entry in store.entries(after=entries[2].id)] == [[7]]


def test_the_log_is_bounded(place: Place) -> None:
    store = place.open()
    for first in range(0, 1000, 250):
        store.append([[number] for number in range(first, first + 250)], limit=50)
    kept = [entry.tokens[0] for entry in store.entries()]
    assert 50 <= len(kept) <= 50 + 150  # Redis removes whole nodes of its stream, of 100 entries
    assert kept == list(range(1000 - len(kept), 1000))


def test_the_log_takes_texts_from_several_processes(place: Place) -> None:
    mine = [[[number, text] for text in range(40)] for number in range(3)]
    place.together(*[("append", (texts, 1000)) for texts in mine])
    entries = place.open().entries()
    for number in range(3):
        assert [list(entry.tokens) for entry in entries if entry.tokens[0] == number] == mine[number]
    assert len({entry.id for entry in entries}) == len(entries) == 120


def test_the_log_refuses_what_is_no_text_or_id(place: Place) -> None:
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
        with pytest.raises(StoreError, match="not the id"):
            store.entries(after=name)
        with pytest.raises(StoreError, match="not the id"):
            store.trim(name)
    assert store.entries() == []


def test_namespaces_are_apart(place: Place, snapshot: Callable[[int], Path]) -> None:
    own = place.open()
    version = publish(own, snapshot(1))
    own.activate(version)
    ends = ("/x", "{x}", "%2Fx", ":x", "ä", "*", " ", "..")
    others = [place.open(namespace=name) for name in (*(f"{place.namespace}{end}" for end in ends), "..", ".")]
    for number, store in enumerate(others):
        assert (store.current(), store.versions(), store.entries(), store.history()) == (Current("", 0), [], [], [])
        with pytest.raises(UnknownVersionError):
            store.fetch(version, Path("never written"))
        store.append([[number]], limit=10)
    for number, store in enumerate(others):
        assert [list(entry.tokens) for entry in store.entries()] == [[number]]
        store.trim(store.entries()[-1].id)  # names that tests share are left empty
    assert own.entries() == []


def test_the_shared_namespace_is_one_like_the_others(place: Place, snapshot: Callable[[int], Path]) -> None:
    shared = place.open(namespace="")
    version = publish(shared, snapshot(1))
    assert version in names(place.open(namespace=""))
    assert place.open(namespace="@shared").versions() == []
    assert place.open(namespace="shared").versions() == []


def test_waiting_ends_when_another_process_does_something(place: Place, snapshot: Callable[[int], Path]) -> None:
    store = place.open()
    version = publish(store, snapshot(1))
    while store.wait(0.1):  # what happened before
        pass
    for job in (("activate", (version,)), ("append", ([[1]], 10))):
        other = threading.Timer(0.1, place.together, args=(job,))
        other.start()
        begun = time.monotonic()
        assert store.wait(20.0)
        assert time.monotonic() - begun < 10.0
        other.join()
        while store.wait(0.1):
            pass


def test_waiting_ends_after_its_time(place: Place) -> None:
    store = place.open()
    while store.wait(0.1):  # a subscription that was just made says "look"
        pass
    for timeout in (0.0, 0.15):
        begun = time.monotonic()
        assert not store.wait(timeout)
        assert timeout - 0.02 <= time.monotonic() - begun < timeout + 2.0


def test_closing_ends_a_wait_and_is_harmless_twice(place: Place) -> None:
    store = place.open()
    store.wait(0.1)
    waiting = threading.Thread(target=store.wait, args=(60.0,))
    waiting.start()
    time.sleep(0.05)
    store.close()
    store.close()
    waiting.join(5.0)
    assert not waiting.is_alive()


def test_a_folder_that_cannot_be_written_is_named(
    place: Place, snapshot: Callable[[int], Path], tmp_path: Path
) -> None:
    store = place.open()
    version = publish(store, snapshot(1))
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreError, match="cannot be written"):
        store.fetch(version, tmp_path / "file" / "below")


def test_a_whole_snapshot_survives_the_folder_it_came_from(
    place: Place, snapshot: Callable[[int], Path], tmp_path: Path
) -> None:
    store = place.open()
    before = contents(snapshot(1))
    version = publish(store, snapshot(1))
    shutil.rmtree(snapshot(1))
    assert contents(store.fetch(version, tmp_path / "local")) == before
