"""Programs beside ``spectra serve`` that join its Ray: they call its application by handles, and bring one of their own
that does."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.server_process import SpectraServer, running
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.matrix

FIELDS = {"prompt": "Snow falls", "max_tokens": 30, "temperature": 0.8, "seed": 3, "return_token_ids": True}

CALLER = """
import json, sys
import ray
from ray import serve

ray.init(log_to_driver=False)
handle, fields = serve.get_app_handle("spectra"), json.loads(sys.argv[1])
whole = handle.generate.remote(fields).result()
chunks = list(handle.options(stream=True).generate_stream.remote(fields))
print(json.dumps([whole, chunks]))
"""

COMPOSITION = """
import sys
import ray
from ray import serve


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Twice:
    def __init__(self):
        self.spectra = serve.get_app_handle("spectra")

    async def __call__(self, request):
        fields = await request.json()
        first = await self.spectra.generate.remote(fields)
        streamed = []
        async for chunk in self.spectra.options(stream=True).generate_stream.remote(fields):
            streamed += chunk["choices"][0]["token_ids"]
        return {"whole": first["choices"][0]["token_ids"], "streamed": streamed}


ray.init(log_to_driver=False)
serve.run(Twice.bind(), name="twice", route_prefix="/twice")
"""


@pytest.fixture(scope="module")
def server(tiny_checkpoint: Path) -> Iterator[SpectraServer]:
    with running(tiny_checkpoint) as started:
        yield started


def environment_file(server: SpectraServer) -> str:
    """The file that the server names at its start."""
    found = re.search(r"`\. (\S+/ray\.env)`", server.log.read_text())
    assert found, server.log.read_text()
    return found[1]


def joined(server: SpectraServer, code: str, *arguments: str) -> str:
    """What a program prints whose shell has read the file; nothing else is in its environment."""
    shell = '. "$1"; shift; exec "$@"'
    command = ["sh", "-c", shell, "sh", environment_file(server), sys.executable, "-c", code, *arguments]
    bare = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=bare)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_file_that_holds_the_token_is_for_this_user_alone(server: SpectraServer) -> None:
    file = Path(environment_file(server))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "RAY_AUTH_TOKEN=" in file.read_text()
    assert re.findall(r"[0-9a-f]{64}", server.log.read_text()) == []


def test_a_program_beside_the_server_calls_it_by_handles(server: SpectraServer) -> None:
    wanted = server.token_ids(**{name: value for name, value in FIELDS.items() if name != "return_token_ids"})
    said: list[Any] = json.loads(joined(server, CALLER, json.dumps(FIELDS)))
    whole, chunks = said
    assert whole["choices"][0]["token_ids"] == wanted
    assert [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]] == wanted


def test_an_application_of_ones_own_in_the_same_cluster_calls_ours(server: SpectraServer) -> None:
    joined(server, COMPOSITION)
    answer = httpx.post(f"{server.base}/twice", json=FIELDS, timeout=LIMIT_S).json()
    wanted = server.token_ids(**{name: value for name, value in FIELDS.items() if name != "return_token_ids"})
    assert answer == {"whole": wanted, "streamed": wanted}
    assert server.settled()["status"] == "ok"
