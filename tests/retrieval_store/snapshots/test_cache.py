"""One folder of snapshots, several processes: each is whole or not there, is brought once, and is freed by a kill."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from retrieval_store.errors import DamagedSnapshotError
from retrieval_store.snapshots import cache, snapshot
from retrieval_store.snapshots.cache import UNFINISHED_S, SnapshotFolder
from retrieval_store.snapshots.snapshot import MANIFEST, FileEntry, Manifest, entry_of, read_manifest, verify
from retrieval_store.snapshots.snapshot_writer import FILES
from tests.support.retrieval_service import build


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """The folder of a snapshot."""
    return build([[5, 6, 7, 8, 9]], tmp_path)


def _version(folder: Path) -> str:
    return read_manifest(folder).version


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def copy(source: Path, into: Path) -> None:
    for name, raw in contents(source).items():
        (into / name).write_bytes(raw)


def test_a_version_is_brought_once_however_many_ask_at_once(built: Path, tmp_path: Path) -> None:
    brought: list[Path] = []

    def bring(into: Path) -> None:
        brought.append(into)
        time.sleep(0.1)
        copy(built, into)

    folders = [SnapshotFolder(tmp_path / "cache") for _ in range(4)]
    threads = [threading.Thread(target=folder.fetch, args=(_version(built), bring)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(brought) == 1
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [_version(built)]


KILLED = """
import os, sys
from pathlib import Path
from retrieval_store.snapshots.cache import SnapshotFolder

def bring(into):
    (into / "text.bin").write_bytes(b"half")
    os.kill(os.getpid(), 9)

SnapshotFolder(Path(sys.argv[1])).fetch(sys.argv[2], bring)
"""


def test_a_process_killed_while_it_brings_frees_the_lock_and_its_half_is_swept(built: Path, tmp_path: Path) -> None:
    version, cache = _version(built), tmp_path / "cache"
    assert subprocess.run([sys.executable, "-c", KILLED, cache, version], check=False).returncode == -9
    (left,) = cache.iterdir()
    folder = SnapshotFolder(cache)
    assert not folder.has(version)
    assert contents(folder.fetch(version, lambda into: copy(built, into))) == contents(built)
    assert left.exists()  # its process might still write
    long_ago = time.time() - UNFINISHED_S - 1
    for path in (*left.rglob("*"), left):
        os.utime(path, (long_ago, long_ago))
    folder.sweep([version])
    assert [path.name for path in cache.iterdir()] == [version]


@pytest.mark.parametrize("missing", [FILES[0], MANIFEST])
def test_a_snapshot_that_was_not_brought_whole_is_refused_and_leaves_nothing(
    missing: str, built: Path, tmp_path: Path
) -> None:
    folder = SnapshotFolder(tmp_path / "cache")

    def bring(into: Path) -> None:
        copy(built, into)
        (into / missing).unlink()

    with pytest.raises(DamagedSnapshotError, match=_version(built)):
        folder.fetch(_version(built), bring)
    assert list(folder.path.iterdir()) == []


def test_a_full_disk_leaves_nothing_and_what_was_there(built: Path, tmp_path: Path) -> None:
    version, folder = _version(built), SnapshotFolder(tmp_path / "cache")
    place = folder.fetch(version, lambda into: copy(built, into))
    (place / FILES[0]).write_bytes(b"short")

    def full(into: Path) -> None:
        (into / FILES[0]).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        folder.fetch(version, full)
    assert [path.name for path in folder.path.iterdir()] == [version]
    assert (place / FILES[0]).read_bytes() == b"short"  # gives way to something better only
    folder.fetch(version, lambda into: copy(built, into))
    assert contents(place) == contents(built)


def test_a_damaged_copy_is_removed_when_it_is_verified(built: Path, tmp_path: Path) -> None:
    version, folder = _version(built), SnapshotFolder(tmp_path / "cache")
    place = folder.fetch(version, lambda into: copy(built, into))
    assert folder.has_sound(version, "")
    raw = (place / FILES[0]).read_bytes()
    (place / FILES[0]).write_bytes(bytes([raw[0] ^ 1]) + raw[1:])
    assert folder.has(version)  # the sizes are right
    assert not folder.has_sound(version, "")
    assert not place.exists()


def test_of_two_processes_that_find_one_damage_the_second_leaves_the_fresh_copy(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, mine, theirs = _version(built), *(SnapshotFolder(tmp_path / "cache") for _ in range(2))
    place = mine.fetch(version, lambda into: copy(built, into))
    raw = (place / FILES[0]).read_bytes()
    (place / FILES[0]).write_bytes(bytes([raw[0] ^ 1]) + raw[1:])

    def while_the_other_mends_it(folder: Path, tokenizer_hash: str) -> Manifest:
        try:
            return verify(folder, tokenizer_hash)
        finally:
            monkeypatch.undo()
            assert not theirs.has_sound(version, "")
            theirs.fetch(version, lambda into: copy(built, into))

    monkeypatch.setattr(cache, "verify", while_the_other_mends_it)
    assert not mine.has_sound(version, "")
    assert contents(place) == contents(built)
    assert mine.has_sound(version, "")


def test_a_copy_that_another_process_removes_is_not_here(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, folder = _version(built), SnapshotFolder(tmp_path / "cache")
    place = folder.fetch(version, lambda into: copy(built, into))

    def once_it_is_gone(path: Path) -> FileEntry:
        shutil.rmtree(place, ignore_errors=True)
        return entry_of(path)

    monkeypatch.setattr(snapshot, "entry_of", once_it_is_gone)
    assert not folder.has_sound(version, "")


def test_a_built_snapshot_is_adopted_and_a_scratch_that_was_not_goes(built: Path, tmp_path: Path) -> None:
    folder = SnapshotFolder(tmp_path / "cache")
    with folder.scratch() as scratch:
        scratch.mkdir()
        copy(built, scratch)
        assert folder.adopt(scratch, _version(built)) == folder.snapshot(_version(built))
    with folder.scratch() as scratch:
        scratch.mkdir()
        copy(built, scratch)
    assert [path.name for path in folder.path.iterdir()] == [_version(built)]


def test_what_the_store_confirmed_is_known_to_the_next_process(tmp_path: Path) -> None:
    folder = SnapshotFolder(tmp_path / "cache")
    assert folder.confirmed() == ("", 0.0)
    began = time.time()
    folder.confirm("a" * 16)
    folder.confirm("b" * 16)
    os.utime(folder.path / "current.json", (1.0, 1.0))
    folder.confirm("b" * 16)
    version, at = SnapshotFolder(tmp_path / "cache").confirmed()
    assert version == "b" * 16
    assert at >= began - 1
    assert [path.name for path in folder.path.iterdir()] == ["current.json"]
