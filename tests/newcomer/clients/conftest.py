"""Public clients, each group in an environment of its own: they want other versions than we do, and run unchanged."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.installation import ROOT, environment, pip
from tests.support.server_process import Server

HERE = Path(__file__).parent
INSTALL_S, RUN_S = 1800, 600
# Nothing is asked of the network but the server.
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

Run = Callable[..., str]


def requirements(group: str) -> Path:
    """What a group installs."""
    return HERE / "requirements" / f"{group}.txt"


def programs(group: str) -> Path:
    """The folder of a group's programs, installed unless they are there from an earlier run.

    What fits of this process's packages is taken from them: torch, which guidellm asks for, is gigabytes. Another
    process that installs the group is waited for.
    """
    wanted = requirements(group)
    basis = (wanted.read_text(), (ROOT / ".ci" / "constraints.txt").read_text(), sys.version, sys.prefix)
    name = f"{group}-{hashlib.sha256(repr(basis).encode()).hexdigest()[:12]}"
    place = Path(os.environ["XDG_CACHE_HOME"]) / "clients" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            python = environment(place)
            pip("--python", str(python), "install", "--no-compile", "-r", str(wanted), within=INSTALL_S)
            (place / "complete").touch()
    return place / "bin"


@pytest.fixture(scope="session")
def run() -> Run:
    """``run("libraries", "python", "file.py", url)``: what a program of a group prints; fails where it fails."""

    def go(group: str, program: str, *arguments: object) -> str:
        command = [str(programs(group) / program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, env=os.environ | QUIET)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return go


@pytest.fixture(scope="package")
def said(server: Server, run: Run) -> Callable[[str], dict[str, Any]]:
    """What a program of ``programs`` got from the server."""

    def of(program: str) -> dict[str, Any]:
        path = HERE / "programs" / f"{program}.py"
        found: dict[str, Any] = json.loads(run("libraries", "python", path, f"{server.base}/v1").splitlines()[-1])
        return found

    return of
