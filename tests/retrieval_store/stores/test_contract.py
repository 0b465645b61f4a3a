"""Every store publishes, verifies, refuses and returns snapshots in the same way."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retrieval_store.errors import DamagedSnapshotError, ForeignSnapshotError, StoreError, UnknownVersionError
from retrieval_store.snapshots.snapshot import MANIFEST, read_manifest, verify
from retrieval_store.stores.base import Current
from tests.support.snapshot_folders import FILES, TOKENIZER, contents
from tests.support.store_kinds import Place, fetch_into, names, publish, publish_often

Snapshots = Callable[[int], Path]
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda raw: raw[: len(raw) // 2],
    "one bit": lambda raw: bytes([raw[0] ^ 4]) + raw[1:],
    "longer": lambda raw: raw + b"more",
    "empty": lambda raw: b"",
}


def test_a_published_snapshot_comes_back_byte_for_byte(place: Place, snapshot: Snapshots, tmp_path: Path) -> None:
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
    place: Place, snapshot: Snapshots, tmp_path: Path
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


def test_publishing_lists_a_version_and_does_not_move_current(place: Place, snapshot: Snapshots) -> None:
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
    place: Place, snapshot: Snapshots, monkeypatch: pytest.MonkeyPatch
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


def test_a_snapshot_of_another_tokenizer_is_refused_by_name(place: Place, snapshot: Snapshots, tmp_path: Path) -> None:
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
    place: Place, snapshot: Snapshots, tmp_path: Path
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
    place: Place, snapshot: Snapshots, tmp_path: Path
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


def test_an_upload_does_not_expire_while_it_is_read_back(place: Place, snapshot: Snapshots) -> None:
    store, other = (place.open(upload_seconds=10_000.0) for _ in range(2))
    blocks, n_aged = store._blocks, 0  # type: ignore[attr-defined]

    def slowly(*arguments: object) -> Iterator[bytes]:
        nonlocal n_aged
        for block in blocks(*arguments):
            place.age_uploads(6000)
            n_aged += 1
            other._abandon(other._begin("0" * 16, b"{}"))  # type: ignore[attr-defined]  # removes what expired
            yield block

    store._blocks = slowly  # type: ignore[attr-defined]
    version = publish(store, snapshot(1))
    assert names(store) == [version]
    assert n_aged >= 2


def test_an_abandoned_upload_expires_and_is_never_a_version(place: Place, snapshot: Snapshots) -> None:
    store, folder = place.open(upload_seconds=10_000.0), snapshot(1)
    version = read_manifest(folder).version
    upload = store._begin(version, (folder / MANIFEST).read_bytes())  # type: ignore[attr-defined]
    store._write(upload, FILES[0], iter([b"half"]))  # type: ignore[attr-defined]
    assert store.versions() == []
    with pytest.raises(UnknownVersionError):
        store.activate(version)
    place.age_uploads(20_000)
    publish(store, folder)
    assert store.activate(version).revision == 1
    assert store._raw_manifest(upload) is None  # type: ignore[attr-defined]


def test_processes_that_publish_and_fetch_at_once_do_not_harm_each_other(
    place: Place, snapshot: Snapshots, tmp_path: Path
) -> None:
    folders = [snapshot(1), snapshot(1), snapshot(2)]
    versions = place.together(publish_often, *((str(folder), 3) for folder in folders))
    assert sorted(names(place.open())) == sorted(set(versions))
    place.together(fetch_into, *((version, str(tmp_path / "local")) for version in versions))
    assert {path.name for path in (tmp_path / "local").iterdir()} == set(versions)
    for version, folder in zip(versions, folders, strict=True):
        assert contents(tmp_path / "local" / version) == contents(folder)
