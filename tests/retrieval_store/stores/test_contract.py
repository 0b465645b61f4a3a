"""What every store does, whatever it keeps snapshots in."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retrieval_store.errors import (
    DamagedSnapshotError,
    ForeignSnapshotError,
    StoreError,
    UnknownVersionError,
)
from retrieval_store.snapshots.snapshot import MANIFEST, read_manifest, verify
from retrieval_store.stores.base import Current
from tests.support.snapshot_folders import FILES, TOKENIZER, contents
from tests.support.store_kinds import Place, names, publish

ABANDONED = 0.5  # seconds, where an upload is to expire


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
    store, other = place.open(upload_seconds=3.0), place.open(upload_seconds=3.0)
    assert other.versions() == []  # it is connected
    blocks, pauses = store._blocks, [1.6, 1.6]  # type: ignore[attr-defined]

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
