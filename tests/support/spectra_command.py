"""``spectra`` in the test's own process, and fixtures that undo what commands change in it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib.font_manager  # noqa: F401  its first import starts fc-list
import pytest
import torch

from app.cli import main
from tests.support.cli_run import CliRun

Lines = list[dict[str, Any]]


def run_here(*command: object) -> CliRun:
    """Run ``spectra`` without a fixture of pytest, so that a module can share a run."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main([str(part) for part in command])
        except SystemExit as usage_error:
            status = int(usage_error.code or 0)
    return CliRun(status, out.getvalue(), err.getvalue())


def generated(model: Path, *flags: object) -> Lines:
    """The JSON lines of ``spectra generate``."""
    ran = run_here("generate", "--model", model, "--json", *flags)
    assert ran.status == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    """Commands set the number of threads of the process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of spectra-serve."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "spectra-serve"
