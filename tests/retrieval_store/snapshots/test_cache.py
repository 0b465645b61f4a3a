"""Processes that share a folder of snapshots find each of them whole or not at all, and fetch it once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from retrieval_store.errors import DamagedSnapshotError
from retrieval_store.snapshots.cache import UNFINISHED_S, SnapshotFolder
from retrieval_store.snapshots.snapshot import MANIFEST, read_manifest
from retrieval_store.snapshots.snapshot_writer import FILES
from tests.support.retrieval_service import build
from tests.support.snapshot_folders import contents

Bring = Callable[[Path], None]


@pytest.fixture
def built(tmp_path: Path) -> Path:
    return build([[5, 6, 7, 8, 9]], tmp_path)


@pytest.fixture
def version(built: Path) -> str:
    return read_manifest(built).version


@pytest.fixture
def bring(built: Path) -> Bring:
    """Copies the snapshot into a folder."""

    def copy(into: Path) -> None:
        for name, raw in contents(built).items():
            (into / name).write_bytes(raw)

    return copy


@pytest.fixture
def folder(tmp_path: Path) -> SnapshotFolder:
    return SnapshotFolder(tmp_path / "cache")


def flip_a_bit(file: Path) -> None:
    raw = file.read_bytes()
    file.write_bytes(bytes([raw[0] ^ 1]) + raw[1:])


def test_a_version_is_fetched_once_by_all_who_want_it_at_once(
    built: Path, version: str, bring: Bring, folder: SnapshotFolder
) -> None:
    fetched: list[Path] = []
    others_wait = threading.Barrier(4)

    def fetch(_: int) -> None:
        others_wait.wait()
        SnapshotFolder(folder.path).fetch(version, lambda into: (fetched.append(into), bring(into))[1])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(fetch, range(4)))
    assert len(fetched) == 1
    assert [path.name for path in folder.path.iterdir()] == [version]
    assert contents(folder.snapshot(version)) == contents(built)


KILLED = """
import os, sys
from pathlib import Path
from retrieval_store.snapshots.cache import SnapshotFolder

def bring(into):
    (into / "text.bin").write_bytes(b"half")
    os.kill(os.getpid(), 9)

SnapshotFolder(Path(sys.argv[1])).fetch(sys.argv[2], bring)
"""


@pytest.mark.cluster
def test_a_process_that_is_killed_while_it_fetches_frees_the_lock_and_its_files_are_swept(
    built: Path, version: str, bring: Bring, folder: SnapshotFolder
) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, folder.path, version], check=False).returncode == -9
    (left,) = folder.path.iterdir()
    assert not folder.has(version)
    assert contents(folder.fetch(version, bring)) == contents(built)
    assert left.exists()  # its process might still write
    long_ago = time.time() - UNFINISHED_S - 1
    for path in (*left.rglob("*"), left):
        os.utime(path, (long_ago, long_ago))
    folder.sweep([version])
    assert [path.name for path in folder.path.iterdir()] == [version]


def test_an_incomplete_or_failed_fetch_is_refused_and_leaves_what_was_there(
    built: Path, version: str, bring: Bring, folder: SnapshotFolder
) -> None:
    def bring_without(missing: str) -> Bring:
        return lambda into: (bring(into), (into / missing).unlink())[1]

    for missing in (FILES[0], MANIFEST):
        with pytest.raises(DamagedSnapshotError, match=version):
            folder.fetch(version, bring_without(missing))
        assert list(folder.path.iterdir()) == []
    place = folder.fetch(version, bring)
    (place / FILES[0]).write_bytes(b"short")

    def full(into: Path) -> None:
        (into / FILES[0]).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        folder.fetch(version, full)
    assert [path.name for path in folder.path.iterdir()] == [version]
    assert (place / FILES[0]).read_bytes() == b"short"  # stays until there is a better one
    folder.fetch(version, bring)
    assert contents(place) == contents(built)


def test_the_next_process_knows_the_version_that_the_store_confirmed(folder: SnapshotFolder) -> None:
    assert folder.confirmed() == ("", 0.0)
    folder.confirm("a" * 16)
    folder.confirm("b" * 16)
    os.utime(folder.path / "current.json", (1.0, 1.0))
    assert SnapshotFolder(folder.path).confirmed() == ("b" * 16, 1.0)
    folder.confirm("b" * 16)
    version, at = SnapshotFolder(folder.path).confirmed()
    assert version == "b" * 16
    assert at > 1.0
    assert [path.name for path in folder.path.iterdir()] == ["current.json"]
