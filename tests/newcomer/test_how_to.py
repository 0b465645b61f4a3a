"""Every command of the how-to pages: those marked ``test`` are run, of those that need hardware the flags are read."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.cli import parser
from app.commands.serve import OBJECTS, flag
from app.config.errors import config_of
from app.config.serve import ServeConfig
from tests.support.server_process import Server

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
FENCE = re.compile(r"^```(\w*)[ ]*([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = ("sh", "bash", "python")
MARKS = ("test", "hardware")
DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class Block:
    language: str
    mark: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_code_is_marked(page: Path) -> None:
    for block in blocks(page):
        assert (block.mark in MARKS) == (block.language in CODE), block
    assert page.read_text().count("```") == 2 * len(blocks(page))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_that_can_run_do(page: Path, server: Server, installed: Path, tmp_path: Path) -> None:
    """One after the other in an empty folder, as a reader would, against the server of these tests."""
    environment = os.environ | {"PATH": f"{installed.parent}:{os.environ['PATH']}"}
    for block in blocks(page):
        if block.mark != "test":
            continue
        text = block.text.replace(DEFAULT_URL, server.base)
        command = ["python", "-c", text] if block.language == "python" else ["bash", "-euo", "pipefail", "-c", text]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_flags_of_commands_that_need_hardware_are_known(page: Path) -> None:
    for block in blocks(page):
        if block.mark != "hardware":
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line.partition(" > ")[0], comments=True)
            if words[:1] != ["spectra"]:
                continue
            given = parser().parse_args(words[1:])
            if words[1] == "serve":
                assert served(given).model


def served(given: argparse.Namespace) -> ServeConfig:
    """The configuration of flags, without looking at files."""
    fields = {name: value for name, value in vars(given).items() if name in ServeConfig.model_fields}
    assert not fields.keys() & OBJECTS
    return config_of(fields, flag)
