"""Public clients in environments of their own: they need other versions than this project, and run unchanged."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.inputs.default_model import DEFAULT_MODEL
from tests.newcomer.clients.programs.person import ASKED, QUESTION, Person
from tests.newcomer.installation import ROOT, environment, output_of, pip
from tests.support.lacking import lacking
from tests.support.server_process import SpectraServer

HERE = Path(__file__).parent
# The clients may ask nothing of the network but the server.
QUIET = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "FALSE",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
}
COMPLETE = ("common",)  # groups whose file names every package that is installed: nothing has to be resolved or built
COMPLETE_FLAGS = ("--no-deps", "--only-binary", ":all:")

Results = Callable[..., dict[str, Any]]
Answer = dict[str, Any]


def installed(group: str) -> Path:
    """Return the folder of a group's programs, installed once and shared by processes and runs.

    Packages of this process are used where they fit: torch, which guidellm needs, is gigabytes.
    """
    requirements = HERE / "requirements" / f"{group}.txt"
    basis = (requirements.read_text(), (ROOT / ".ci" / "constraints.txt").read_text(), sys.version, sys.prefix)

    def install(place: Path) -> None:
        flags = COMPLETE_FLAGS if group in COMPLETE else ()
        pip("--python", str(environment(place)), "install", "--no-compile", *flags, "-r", str(requirements))

    return _made_once(group, basis, install) / "bin"


def installed_packages(group: str) -> Path:
    """Return a folder with a group's packages of npm, installed once."""
    if shutil.which("npm") is None:
        lacking("npm not found: apt-get install nodejs npm")
    files = [HERE / "requirements" / group / name for name in ("package.json", "package-lock.json")]

    def install(place: Path) -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for file in files:
            shutil.copy(file, place)
        output_of("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", folder=place)

    return _made_once(group, [file.read_text() for file in files], install)


def _made_once(group: str, basis: object, make: Callable[[Path], None]) -> Path:
    """Return the folder of a group in the tests' cache, which ``make`` fills unless it is complete."""
    place = Path(os.environ["XDG_CACHE_HOME"]) / "clients" / f"{group}-{_digest(basis)}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            make(place)
            (place / "complete").touch()
    return place


def _digest(basis: object) -> str:
    return hashlib.sha256(repr(basis).encode()).hexdigest()[:12]


def run(group: str, program: str, *arguments: object) -> str:
    """Return what a program of a group prints."""
    return output_of(installed(group) / program, *arguments, environment=os.environ | QUIET)


@pytest.fixture(scope="package")
def results_of(server: SpectraServer) -> Results:
    """Returns what a program of ``programs`` got from the server, with the packages of a group."""

    def results(program: str, group: str = "libraries") -> Answer:
        path = HERE / "programs" / f"{program}.py"
        found: Answer = json.loads(run(group, "python", path, f"{server.base}/v1").splitlines()[-1])
        return found

    return results


@pytest.fixture(scope="package")
def plain(server: SpectraServer) -> Answer:
    """The answer of at most 24 tokens to the programs' question, by plain HTTP."""
    return _answer(server, QUESTION, max_tokens=24)


@pytest.fixture(scope="package")
def text(plain: Answer) -> str:
    return str(plain["choices"][0]["message"]["content"])


@pytest.fixture(scope="package")
def n_tokens(plain: Answer) -> int:
    return int(plain["usage"]["completion_tokens"])


@pytest.fixture(scope="package")
def person(server: SpectraServer) -> Answer:
    """The object that the programs ask for, by plain HTTP."""
    form = {"name": "person", "schema": Person.model_json_schema() | {"additionalProperties": False}}
    answer = _answer(server, ASKED, response_format={"type": "json_schema", "json_schema": form}, max_tokens=200)
    return Person.model_validate_json(answer["choices"][0]["message"]["content"]).model_dump()


def _answer(server: SpectraServer, question: str, **fields: object) -> Answer:
    body = {"model": DEFAULT_MODEL, "temperature": 0, "messages": [{"role": "user", "content": question}]}
    answer = server.http.post("/v1/chat/completions", json=body | fields)
    assert answer.status_code == 200, answer.text
    found: Answer = answer.json()
    return found
