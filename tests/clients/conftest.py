"""Public clients, each group in an environment of its own: they want other versions than we do, and run unchanged."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.demo.paths import DEMO
from tests.support.server_process import Server

HERE = Path(__file__).parent
INSTALL_S, RUN_S = 1200, 300
# Nothing is asked of the network but the server.
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

Run = Callable[..., str]


def installed(group: str) -> Path:
    """The folder of the programs of `requirements/GROUP.txt`, installed unless they are there from an earlier run."""
    wanted = HERE / "requirements" / f"{group}.txt"
    name = f"{group}-{hashlib.sha256(wanted.read_bytes() + sys.version.encode()).hexdigest()[:12]}"
    place = Path(os.environ["XDG_CACHE_HOME"]) / "clients" / name
    if not (place / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        command = [f"{place}/bin/python", "-m", "pip", "install", "--quiet", "-r", str(wanted)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
        assert done.returncode == 0, done.stderr
        (place / "complete").touch()
    return place / "bin"


@pytest.fixture(scope="session")
def run() -> Run:
    """``run("libraries", "python", "file.py", url)``: what a program of a group prints; fails where it fails."""

    def go(group: str, program: str, *arguments: object) -> str:
        command = [str(installed(group) / program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, env=os.environ | QUIET)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return go


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """`make serve`, in short."""
    with tempfile.TemporaryDirectory(prefix="pc-") as folder:
        started = Server(Path(DEMO), Path(folder), ())
        yield started
        started.close()


@pytest.fixture(scope="session")
def said(server: Server, run: Run) -> Callable[[str], dict[str, Any]]:
    """What a program of ``programs`` got from the server."""

    def of(program: str) -> dict[str, Any]:
        path = HERE / "programs" / f"{program}.py"
        found: dict[str, Any] = json.loads(run("libraries", "python", path, f"{server.base}/v1").splitlines()[-1])
        return found

    return of
