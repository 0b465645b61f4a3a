"""Snapshots on a node's disk: superseded ones are removed, damaged ones fetched again, too large ones refused."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from retrieval_store.service import watcher
from retrieval_store.service.watcher import NamespaceWatcher
from retrieval_store.snapshots import cache
from retrieval_store.snapshots.cache import SnapshotFolder
from retrieval_store.stores import base
from retrieval_store.stores.open import open_store
from tests.support.retrieval_service import SHARED, TARGET, publish

ONE, TWO = [5, 6, 7, 8, 9], [5, 6, 70, 80, 90]


@pytest.fixture
def folder(tmp_path: Path) -> SnapshotFolder:
    return SnapshotFolder(tmp_path / "cache")


def watching(where: str, folder: SnapshotFolder) -> NamespaceWatcher:
    return NamespaceWatcher(open_store(where, SHARED), folder, TARGET.tokenizer_hash)


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds - 1
    os.utime(path, (then, then))


def served(looks: NamespaceWatcher) -> str:
    return looks.served.part.version if looks.served else ""


def test_a_superseded_snapshot_is_removed_after_a_while(where: str, tmp_path: Path, folder: SnapshotFolder) -> None:
    looks = watching(where, folder)
    first = publish(open_store(where, SHARED), [ONE], tmp_path)
    assert looks.look()
    second = publish(open_store(where, SHARED), [TWO], tmp_path)
    assert looks.look()
    assert not looks.look()
    assert folder.snapshot(first).exists()  # readers may be about to open it
    age(folder.snapshot(first), cache.UNUSED_S)
    looks.look()
    assert [path.name for path in folder.path.iterdir() if path.is_dir()] == [second]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("raw", [b"short", b""], ids=["cut", "one bit"])
def test_a_damaged_copy_is_fetched_again_at_a_restart_or_rollback(
    restarts: bool, raw: bytes, where: str, tmp_path: Path, folder: SnapshotFolder
) -> None:
    store, looks = open_store(where, SHARED), watching(where, folder)
    first = publish(store, [ONE], tmp_path)
    looks.look()
    file = folder.snapshot(first) / "text.bin"
    sound = file.read_bytes()
    if restarts:
        looks = watching(where, folder)
    else:
        publish(store, [TWO], tmp_path)
        looks.look()
        store.rollback()
    file.unlink()  # it is the store's own file under a second name
    file.write_bytes(raw or bytes([sound[0] ^ 1]) + sound[1:])
    looks.restore()
    assert looks.look()
    assert served(looks) == first
    assert file.read_bytes() == sound
    assert looks.n_refused == 0


def test_a_cache_that_is_emptied_is_filled_again(where: str, tmp_path: Path, folder: SnapshotFolder) -> None:
    looks = watching(where, folder)
    first = publish(open_store(where, SHARED), [ONE], tmp_path)
    looks.look()
    shutil.rmtree(folder.path)
    looks.look()
    assert folder.has(first)
    assert looks.problem == ""


def test_two_processes_that_sweep_one_folder_keep_what_the_other_uses(folder: SnapshotFolder) -> None:
    other = SnapshotFolder(folder.path)
    for version in ("a" * 16, "b" * 16, "c" * 16):
        (folder.path / version).mkdir(parents=True)
        age(folder.path / version, cache.UNUSED_S)
    other.touch(["b" * 16])
    folder.sweep(["a" * 16])
    assert sorted(path.name[0] for path in folder.path.iterdir()) == ["a", "b"]


def test_a_snapshot_that_does_not_fit_the_disk_is_refused_and_tried_seldom_until_it_fits(
    tmp_path: Path, folder: SnapshotFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store("memory://too-large", SHARED)
    first = publish(store, [ONE], tmp_path)
    looks = NamespaceWatcher(store, folder, TARGET.tokenizer_hash)
    looks.look()
    second = publish(store, [TWO], tmp_path)
    tries: list[str] = []

    def full(path: Path, blocks: object) -> None:
        tries.append(path.name)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(watcher, "RETRY_S", 1e6)
    monkeypatch.setattr(watcher, "RETRY_MOST_S", 1e6)
    monkeypatch.setattr(base, "write_blocks", full)
    for _ in range(3):
        assert not looks.look()
        assert "No space left" in looks.problem
    assert (len(tries), looks.n_refused, served(looks)) == (1, 1, first)
    monkeypatch.undo()
    later = time.monotonic() + 2e6
    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=lambda: later, time=time.time))
    assert looks.look()
    assert served(looks) == second
