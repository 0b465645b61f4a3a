"""``pip install spectra-serve``: what the wheel holds, and that its commands work where there is no checkout."""

from __future__ import annotations

import importlib.metadata
import subprocess
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from app.version import VERSION
from tests.support.installation import ROOT, packages
from tests.support.server_process import Server

pytestmark = pytest.mark.cluster


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([installed, *arguments], cwd=folder, capture_output=True, text=True, timeout=600)


def test_every_file_of_the_packages_is_in_it(wheel: Path) -> None:
    names = [str(package.relative_to(ROOT)) for package in packages()]
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", *names], cwd=ROOT, capture_output=True)
    tracked = {name for name in listed.stdout.decode().splitlines() if (ROOT / name).is_file()}
    assert tracked
    with zipfile.ZipFile(wheel) as archive:
        assert tracked - set(archive.namelist()) == set()


def test_its_licence_and_description_are_told(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        (licence,) = (name for name in archive.namelist() if name.endswith("/licenses/LICENSE"))
        told = message_from_bytes(archive.read(metadata))
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
    assert (told["Name"], told["Version"], told["License-Expression"]) == ("spectra-serve", VERSION, "Apache-2.0")
    assert told["Description-Content-Type"] == "text/markdown"
    assert f"torch=={importlib.metadata.version('torch').partition('+')[0]}" in told.get_all("Requires-Dist", [])


def test_commands_run_outside_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    assert run(installed, tmp_path, "--version").stdout == f"spectra-serve {VERSION}\n"
    question = "There are 4 tables with 8 books on each. How many books are there?"
    answer = run(installed, tmp_path, "generate", "--method", "suffix", "--prompt", question)
    assert answer.returncode == 0, answer.stderr
    assert "32" in answer.stdout
    assert "export RAY_SERVE_ENABLE_HA_PROXY=1" in run(installed, tmp_path, "env").stdout


def test_manifests_are_the_checkout_s_and_it_says_so(installed: Path, tmp_path: Path) -> None:
    refused = run(installed, tmp_path, "k8s", "render", "--overlay", "cpu-demo")
    assert refused.returncode == 2
    assert "k8s (--folder) has no overlays" in refused.stderr
    assert "not in the wheel" in refused.stderr


def test_its_server_answers_with_the_demo_model_of_the_wheel(server: Server, installed: Path) -> None:
    answer = server.openai.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "What is 3 + 4?"}], temperature=0
    )
    assert "7" in (answer.choices[0].message.content or "")
    where = subprocess.run(
        [installed.with_name("python"), "-c", "import app; print(app.__file__)"], cwd=server.folder, capture_output=True
    )
    assert where.stdout.decode().startswith(str(installed.parents[1]))
