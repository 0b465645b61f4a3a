"""A directory store syncs a version before it appears, hides it from other users, and keeps unfinished copies."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

import pytest

from retrieval_store.snapshots.names import folder_segment, segment
from retrieval_store.snapshots.snapshot import MANIFEST
from retrieval_store.stores.directory import DirectoryStore
from retrieval_store.stores.records import StoreOptions
from tests.retrieval_store.stores.store_kinds import StoreKind, append_each, publish_often, win_moves
from tests.support.snapshot_folders import FILES, make_snapshot


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store", "space", StoreOptions())


@pytest.fixture
def built(tmp_path: Path) -> Path:
    make_snapshot(tmp_path / "built", 1)
    return tmp_path / "built"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("has_links", [True, False], ids=["linked", "copied"])
def test_a_version_appears_only_when_it_is_on_the_disk(
    has_links: bool, store: DirectoryStore, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()  # inodes
    appeared: list[str] = []
    sync, rename = os.fsync, Path.rename

    def fsync(handle: int) -> None:
        synced.add(os.fstat(handle).st_ino)
        sync(handle)

    def checked_rename(path: Path, target: Path) -> Path:
        missing = [one for one in (path, *path.iterdir()) if one.stat().st_ino not in synced]
        assert missing == []
        appeared.extend(sorted(one.name for one in path.iterdir()))
        return rename(path, target)

    def link(*paths: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", checked_rename)
    if not has_links:
        monkeypatch.setattr(os, "link", link)
    version = store.publish(built)
    fetched = store.fetch(version, tmp_path / "local")
    assert appeared == sorted([*FILES, MANIFEST]) * 2
    for folder in (fetched.parent, tmp_path / "store" / "space" / "versions"):
        assert folder.stat().st_ino in synced


def test_only_this_user_can_read_what_is_stored(store: DirectoryStore, built: Path, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        store.append([[1]], 10)
        version = store.publish(built)
        store.fetch(version, tmp_path / "local")
    finally:
        os.umask(before)
    folder = tmp_path / "store" / "space"
    for path in (folder.parent, folder, folder / "versions", folder / "versions" / version, tmp_path / "local"):
        assert mode(path) == 0o700, path
    assert mode(folder / "log.sqlite") == 0o600


def test_names_that_differ_only_in_case_have_folders_of_their_own() -> None:
    names = [
        "",
        "A" * 128,
        *["acme", "ACME", "Acme", "acmE", "acme@f", "ä", "Ä", "%2f", "%2F", "@shared", "@Shared", ".."],
    ]
    folders = [folder_segment(name) for name in names]
    assert len({folder.lower() for folder in folders}) == len(names)
    assert max(map(len, folders)) < 250
    assert folder_segment("tenant-2") == segment("tenant-2") == "tenant-2"


@pytest.mark.cluster
def test_processes_share_a_directory_store(
    tmp_path: Path, snapshot: Callable[[int], Path], processes: Executor
) -> None:
    place = StoreKind("directory", str(tmp_path / "store"), pool=processes)
    versions = place.together(publish_often, *((str(snapshot(number)), 3) for number in (1, 1, 2)))
    won = place.together(win_moves, *[(sorted(set(versions)), 3)] * 3)
    assert sorted(revision for mine in won for revision in mine) == list(range(1, 10))
    place.together(append_each, *(([[number, text] for text in range(10)],) for number in range(3)))
    assert len(place.open().entries()) == 30
