"""The script that copies weights to a node's disk, by real shells that run at once."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.manifests import FOLDER

SCRIPT = FOLDER / "components" / "model-cache-nvme" / "copy_model.sh"
NAME = "a-model"
FILES = {"config.json": b"{}", "model-00001-of-00002.safetensors": b"x" * 70_000, "extra/with space.txt": b"y"}


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A volume with a model, as the Job that fetches leaves it."""
    model = tmp_path / "volume" / NAME
    for name, content in FILES.items():
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_bytes(content)
    sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in FILES.items())
    (model / "SHA256SUMS").write_text(f"# owner/{NAME} {'0' * 40}\n{sums}")
    (tmp_path / "disk").mkdir()
    return tmp_path / "volume"


def start(volume: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", SCRIPT, volume, volume.parent / "disk"],
        env={"PATH": os.environ["PATH"], "NAME": NAME},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=240)
    return process.returncode, said


def copied(volume: Path) -> dict[str, bytes]:
    model = volume.parent / "disk" / NAME
    assert (model / ".complete").exists()
    return {name: (model / name).read_bytes() for name in FILES}


def test_pods_that_start_at_once_copy_once_and_find_it_afterwards(volume: Path) -> None:
    processes = [start(volume) for _ in range(4)]
    assert [end(process)[0] for process in processes] == [0] * 4
    assert copied(volume) == FILES
    inode = (volume.parent / "disk" / NAME / "config.json").stat().st_ino
    (volume / NAME / "SHA256SUMS").unlink()  # the volume is not asked again
    assert end(start(volume))[0] == 0
    assert (volume.parent / "disk" / NAME / "config.json").stat().st_ino == inode


def test_what_an_interrupted_copy_left_is_not_used(volume: Path) -> None:
    partial = volume.parent / "disk" / f".{NAME}.partial"
    partial.mkdir()
    (partial / "config.json").write_text("half")
    assert end(start(volume))[0] == 0
    assert copied(volume) == FILES
    assert not partial.exists()


def test_files_that_are_not_those_of_the_sums_are_refused(volume: Path) -> None:
    (volume / NAME / "config.json").write_text("[]")
    status, said = end(start(volume))
    assert status != 0
    assert "config.json: FAILED" in said
    assert not (volume.parent / "disk" / NAME).exists()


def test_it_waits_until_the_model_has_been_fetched(volume: Path) -> None:
    whole = volume / NAME
    hidden = whole.rename(volume / f".{NAME}.partial")
    process = start(volume)
    assert process.stdout is not None
    assert process.stdout.readline() == f"waiting for {whole}\n"
    time.sleep(0.2)
    assert process.poll() is None
    hidden.rename(whole)
    assert end(process)[0] == 0
    assert copied(volume) == FILES
