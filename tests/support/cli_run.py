"""A command that runs in the process of the test."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from app.cli import main


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


def run_cli(capsys: pytest.CaptureFixture[str], *command: object) -> CliRun:
    capsys.readouterr()  # drops earlier output
    return CliRun(main([str(part) for part in command]), *capsys.readouterr())
