"""``spectra generate`` as tests of several of its flags run it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.cli import main

Lines = list[dict[str, Any]]


@pytest.fixture
def spectra(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Lines]:
    """``spectra("--prompt", "hi", ...)``: runs the command here and returns its JSON lines."""

    def run(*flags: object) -> Lines:
        capsys.readouterr()
        assert main(["generate", "--model", str(tiny_checkpoint), "--json", *map(str, flags)]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run
