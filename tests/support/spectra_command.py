"""``spectra`` in the test's own process, and fixtures that undo what commands change in it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.font_manager  # noqa: F401  its first import starts fc-list
import pytest
import torch

from app.cli import main

Lines = list[dict[str, Any]]


@dataclass
class CliRun:
    status: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        return dict(json.loads(self.out.splitlines()[-1]))

    @property
    def methods(self) -> dict[str, Any]:
        """The figures of a benchmark by method."""
        return dict(self.document["methods"])

    def tau(self, method: str) -> float:
        return float(self.methods[method]["tokens_per_forward"])


def run_cli(*command: object) -> CliRun:
    """Run ``spectra`` in this process, also in fixtures of a module."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main([str(part) for part in command])
        except SystemExit as usage_error:
            status = int(usage_error.code or 0)
    return CliRun(status, out.getvalue(), err.getvalue())


def generated(model: Path, *flags: object) -> Lines:
    """The JSON lines of ``spectra generate``."""
    ran = run_cli("generate", "--model", model, "--json", *flags)
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
