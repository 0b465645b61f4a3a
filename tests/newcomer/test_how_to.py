"""Blocks of the how-to pages: each runs, or its command parses where it needs hardware."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.cli import parser
from app.config.errors import config_of
from app.config.flags import OBJECTS, flag
from app.config.serve import ServeConfig
from tests.support.server_process import SpectraServer, spectra

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "how-to").glob("*.md"))
FENCE = re.compile(r"^```(\w*)[ ]*([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    mark: str  # test: it is run; hardware: its flags are parsed; package NAME: a file of an added method
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text())]


@pytest.mark.cluster
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_how_to_page_run(
    page: Path, server: SpectraServer, tiny_default: dict[str, str], tmp_path: Path
) -> None:
    environment = os.environ | tiny_default | {"PATH": f"{Path(spectra()).parent}:{os.environ['PATH']}"}
    for block in blocks(page):
        if block.mark != "test":
            continue
        text = block.text.replace("http://127.0.0.1:8000", server.base)
        command = ["python", "-c", text] if block.language == "python" else ["bash", "-euo", "pipefail", "-c", text]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"


def test_every_block_of_code_is_run_or_needs_hardware() -> None:
    for page in PAGES:
        for block in blocks(page):
            is_code = block.language in ("sh", "bash", "python")
            assert block.mark.startswith("package") or (block.mark in ("test", "hardware")) == is_code, block
        assert page.read_text().count("```") == 2 * len(blocks(page))


def test_commands_that_need_hardware_have_known_flags() -> None:
    texts = [block.text for page in PAGES for block in blocks(page) if block.mark == "hardware"]
    for line in "\n".join(texts).replace("\\\n", " ").splitlines():
        words = shlex.split(line.partition(" > ")[0], comments=True)
        if words[:1] == ["spectra"]:
            given = parser().parse_args(words[1:])
            if words[1] == "serve":
                fields = {name: value for name, value in vars(given).items() if name in ServeConfig.model_fields}
                assert not fields.keys() & OBJECTS
                assert config_of(fields, flag).model
