"""The public clients install from the package index, and what runs is the version that is asked for."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.newcomer.clients.conftest import HERE, programs, requirements

pytestmark = pytest.mark.clients

VERSIONS = "import importlib.metadata, json, sys; print(json.dumps([*map(importlib.metadata.version, sys.argv[1:])]))"


@pytest.mark.parametrize("group", sorted(file.stem for file in (HERE / "requirements").iterdir()))
def test_a_group_has_the_versions_that_it_asks_for(group: str) -> None:
    wanted = dict(line.split("==") for line in requirements(group).read_text().split())
    command = [str(programs(group) / "python"), "-c", VERSIONS, *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [*wanted.values()]
