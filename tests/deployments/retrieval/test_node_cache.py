"""Snapshots on a node's disk: what is hurt, too large, used no longer; without a cluster."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from retrieval_store.service import service, watcher
from retrieval_store.service.watcher import Watcher
from retrieval_store.snapshots import cache
from retrieval_store.snapshots.cache import SnapshotFolder
from retrieval_store.stores import common
from retrieval_store.stores.open import open_store
from tests.support.retrieval_service import SHARED, TARGET, Node, eventually, follows, publish, running

ONE, TWO = [5, 6, 7, 8, 9], [5, 6, 70, 80, 90]


@pytest.fixture
def where(tmp_path: Path) -> str:
    """A store in a folder."""
    return str(tmp_path / "store")


def _superseded(node: Node, folder: Path) -> str:
    """Serve one snapshot and then another; returns the version of the first, whose copy the node still has."""
    first = publish(node.store(), [ONE], folder)
    eventually(lambda: node.version() == first)
    second = publish(node.store(), [TWO], folder)
    eventually(lambda: node.version() == second)
    return first


def test_superseded_snapshots_leave_the_disk_after_a_while(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(where, tmp_path / "cache") as node:
        first = _superseded(node, tmp_path)
        (old,) = (tmp_path / "cache").rglob(first)
        time.sleep(0.2)
        assert old.exists()  # readers may be about to open it
        index = node.reader.of("")[0]
        long_ago = time.time() - cache.UNUSED_S - 1
        os.utime(old, (long_ago, long_ago))
        eventually(lambda: not old.exists())
        assert follows([index], [5, 6]) == [70, 80, 90]


def test_a_copy_on_this_node_that_was_hurt_is_fetched_again(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        first = _superseded(node, tmp_path)
        (place,) = (tmp_path / "cache").rglob(first)
        (place / "text.bin").unlink()  # it may be the store's own file under a second name
        (place / "text.bin").write_bytes(b"short")
        node.store().rollback()
        eventually(lambda: node.version() == first)
        assert node.says([5, 6]) == [7, 8, 9]


def _hurt_copy(cache_folder: Path, version: str) -> tuple[Path, bytes]:
    (file,) = cache_folder.rglob(f"{version}/text.bin")
    sound = file.read_bytes()
    file.unlink()  # it may be the store's own file under a second name
    file.write_bytes(bytes([sound[0] ^ 1]) + sound[1:])
    return file, sound


def test_a_copy_that_was_changed_while_no_service_ran_is_fetched_again(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        first = publish(node.store(), [ONE], tmp_path)
        eventually(lambda: node.version() == first)
    file, sound = _hurt_copy(tmp_path / "cache", first)
    with running(where, tmp_path / "cache") as node:
        eventually(lambda: node.says([5, 6]) == [7, 8, 9])
        assert file.read_bytes() == sound
        assert node.service.status().refused == 0


def test_a_copy_that_was_changed_before_a_rollback_is_fetched_again(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        first = _superseded(node, tmp_path)
        file, sound = _hurt_copy(tmp_path / "cache", first)
        node.store().rollback()
        eventually(lambda: node.version() == first)
        assert file.read_bytes() == sound


def test_folders_of_namespaces_that_gave_way_are_removed_while_the_service_runs(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "SWEEP_S", 0.02)
    with running(where, tmp_path / "cache") as node:
        publish(node.store(), [ONE], tmp_path)
        eventually(lambda: node.version())
        (mine,) = (tmp_path / "cache").rglob("n-default")
        gone, recent = mine.parent / "n-gone", mine.parent / "n-recent"
        for folder in (gone, recent):
            folder.mkdir()
        long_ago = time.time() - cache.FORGOTTEN_S - 1
        for folder in (gone, *mine.rglob("*"), mine):
            os.utime(folder, (long_ago, long_ago))
        eventually(lambda: not gone.exists())
        assert recent.exists()
        assert mine.exists()


def test_a_cache_that_is_emptied_is_filled_again(where: str, tmp_path: Path) -> None:
    with running(where, tmp_path / "cache") as node:
        first = publish(node.store(), [ONE], tmp_path)
        eventually(lambda: node.version() == first)
        shutil.rmtree(tmp_path / "cache")
        assert node.says([5, 6]) == [7, 8, 9]  # what is mapped stays
        eventually(lambda: list((tmp_path / "cache").rglob(first)))
        assert node.problem == ""


def test_two_processes_that_sweep_one_folder_leave_each_other_what_they_use(tmp_path: Path) -> None:
    mine, theirs = SnapshotFolder(tmp_path, 60.0), SnapshotFolder(tmp_path, 60.0)
    long_ago = time.time() - 61.0
    for version in ("a" * 16, "b" * 16, "c" * 16):
        (tmp_path / version).mkdir()
        os.utime(tmp_path / version, (long_ago, long_ago))
    theirs.touch(["b" * 16])
    mine.sweep(["a" * 16])
    assert sorted(path.name[0] for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_snapshot_that_does_not_fit_the_disk_is_refused_until_it_does(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "RETRY_S", 0.05)
    with running(where, tmp_path / "cache") as node:
        first = publish(node.store(), [ONE], tmp_path)
        eventually(lambda: node.version() == first)
        monkeypatch.setattr(SnapshotFolder, "make", _full)
        second = publish(node.store(), [TWO], tmp_path)
        eventually(lambda: "No space left" in node.problem)
        assert node.says([5, 6]) == [7, 8, 9]
        monkeypatch.undo()
        eventually(lambda: node.version() == second)


def test_a_snapshot_that_does_not_fit_is_not_fetched_again_at_every_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store("memory://too-large", SHARED)
    publish(store, [ONE], tmp_path)
    tries: list[str] = []

    def full(path: Path, blocks: object) -> None:
        tries.append(path.name)
        raise OSError(28, "No space left on device")

    looks = Watcher(store, SnapshotFolder(tmp_path / "cache", 60.0), TARGET.tokenizer_hash)
    monkeypatch.setattr(common, "write_blocks", full)
    for _ in range(3):
        assert not looks.look()
        assert "No space left" in looks.problem
    assert len(tries) == 1
    assert looks.n_refused == 1


def _full(folder: SnapshotFolder) -> None:
    raise OSError(28, "No space left on device")
