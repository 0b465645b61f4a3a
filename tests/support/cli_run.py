"""What a command that was run in the test's own process ran."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from app.cli import main


@dataclass
class CliRun:
    """What a run ran."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        return dict(json.loads(self.out.splitlines()[-1]))

    @property
    def methods(self) -> dict[str, Any]:
        """Of a benchmark."""
        return dict(self.document["methods"])

    def tau(self, method: str) -> float:
        """Tokens per forward of a benchmark's method."""
        return float(self.methods[method]["tokens_per_forward"])


def run_cli(capsys: pytest.CaptureFixture[str], *command: object) -> CliRun:
    """Run ``spectra`` with these arguments."""
    capsys.readouterr()  # drops earlier output
    status = main([str(part) for part in command])
    output = capsys.readouterr()
    return CliRun(status, output.out, output.err)
