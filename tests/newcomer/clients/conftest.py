"""Public clients in environments of their own: they need other versions than this project, and run unchanged."""

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

from tests.newcomer.installation import ROOT, environment, pip
from tests.support.server_process import Server

HERE = Path(__file__).parent
# The clients may ask nothing of the network but the server.
QUIET = {"DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def installed(group: str) -> Path:
    """Return the folder of a group's programs, installed once and shared by processes and runs.

    Packages of this process are used where they fit: torch, which guidellm needs, is gigabytes.
    """
    requirements = HERE / "requirements" / f"{group}.txt"
    basis = (requirements.read_text(), (ROOT / ".ci" / "constraints.txt").read_text(), sys.version, sys.prefix)
    name = f"{group}-{hashlib.sha256(repr(basis).encode()).hexdigest()[:12]}"
    place = Path(os.environ["XDG_CACHE_HOME"]) / "clients" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            python = environment(place)
            pip("--python", str(python), "install", "--no-compile", "-r", str(requirements))
            (place / "complete").touch()
    return place / "bin"


def run(group: str, program: str, *arguments: object) -> str:
    """Return what a program of a group prints."""
    command = [str(installed(group) / program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | QUIET)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="package")
def results_of(server: Server) -> Callable[[str], dict[str, Any]]:
    """Returns what a program of ``programs`` got from the server."""

    def results(program: str) -> dict[str, Any]:
        path = HERE / "programs" / f"{program}.py"
        found: dict[str, Any] = json.loads(run("libraries", "python", path, f"{server.base}/v1").splitlines()[-1])
        return found

    return results
