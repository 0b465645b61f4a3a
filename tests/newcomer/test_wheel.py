"""Source distribution and wheel are complete, and the wheel's commands work without a checkout."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from app.inputs.default_model import DEFAULT_MODEL, HUB_ID, PACKAGE, REQUIREMENT
from app.version import VERSION
from tests.newcomer.installation import ROOT, build_wheel, install, packages
from tests.support.server_process import running

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``spectra`` of an environment with the wheel."""
    return install(wheel, tmp_path_factory.mktemp("environment"))


def test_the_wheel_has_every_file_of_the_packages_its_licence_and_dependencies(wheel: Path) -> None:
    names = [str(package.relative_to(ROOT)) for package in packages()]
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", *names], cwd=ROOT, capture_output=True)
    tracked = {name for name in listed.stdout.decode().splitlines() if (ROOT / name).is_file()}
    assert tracked
    with zipfile.ZipFile(wheel) as archive:
        assert tracked - set(archive.namelist()) == set()
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        (licence,) = (name for name in archive.namelist() if name.endswith("/licenses/LICENSE"))
        fields = message_from_bytes(archive.read(metadata))
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
    assert (fields["Name"], fields["Version"], fields["License-Expression"]) == ("spectra-serve", VERSION, "Apache-2.0")
    assert fields["Description-Content-Type"] == "text/markdown"
    assert f"torch=={importlib.metadata.version('torch').partition('+')[0]}" in fields.get_all("Requires-Dist", [])


def test_the_source_distribution_has_licence_readme_and_changelog_but_no_tests(wheel: Path) -> None:
    (sdist,) = wheel.parent.glob("*.tar.gz")  # the wheel was built from it
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "PKG-INFO"} <= names
    assert not [name for name in names if name.startswith("tests")]


def test_commands_run_outside_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | variables
        return subprocess.run([installed, *arguments], cwd=tmp_path, capture_output=True, text=True, env=environment)

    assert run("--version").stdout == f"spectra-serve {VERSION}\n"
    question = ("generate", "--method", "suffix", "--max-tokens", "8", "--prompt", "What is the capital of France?")
    answer = run(*question)
    assert answer.returncode == 0, answer.stderr
    assert "Paris" in answer.stdout
    (tmp_path / f"{PACKAGE}.py").touch()  # no package: there is no file with weights
    refused = run(*question, PYTHONPATH=str(tmp_path), HF_HUB_OFFLINE="1")
    assert refused.returncode == 2
    assert REQUIREMENT in refused.stderr
    assert HUB_ID in refused.stderr
    assert "export RAY_SERVE_ENABLE_HA_PROXY=1" in run("env").stdout
    refused = run("k8s", "render", "--overlay", "cpu-demo")
    assert refused.returncode == 2
    assert "k8s (--folder) has no overlays" in refused.stderr
    assert "not in the wheel" in refused.stderr


def test_the_installed_server_answers(installed: Path, tiny_default: dict[str, str]) -> None:
    with running(Path(DEFAULT_MODEL), (), program=installed, environment=tiny_default) as server:
        assert len(server.token_ids(model=DEFAULT_MODEL, max_tokens=8)) == 8
        command = [installed.with_name("python"), "-c", "import app; print(app.__file__)"]
        where = subprocess.run(command, cwd=server.folder, capture_output=True, text=True)
        assert where.stdout.startswith(str(installed.parents[1]))
