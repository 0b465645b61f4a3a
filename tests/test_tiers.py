"""The guard of the tiers fails tests that do what their tier excludes, also where they catch its error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import contextlib, subprocess, pytest
from app.inputs.default_model import default_model
def test_quick():
    with contextlib.suppress(AssertionError):
        subprocess.run(["true"])
def test_default_model(): open(default_model(), "rb").close()
@pytest.mark.cluster
def test_root(): subprocess.run(["unshare", "--version"])
@pytest.mark.cluster
def test_process(): subprocess.run(["true"])
"""


@pytest.mark.cluster
def test_a_test_that_does_what_its_tier_excludes_fails(tmp_path: Path) -> None:
    (tmp_path / "test_probe.py").write_text(CODE)
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "pytest", "-c", root / "pyproject.toml", "-p", "tests.conftest", "-p", "no:xdist"]
    ran = subprocess.run([*command, tmp_path / "test_probe.py"], cwd=root, capture_output=True, text=True)
    assert "2 failed, 2 passed, 3 errors" in ran.stdout, ran.stdout
