"""Runs ``spectra load`` as a process of its own and reads what it says; not what it is asked to do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


def load(url: str, *flags: str | int | float) -> dict[str, Any]:
    """The JSON document of ``spectra load --url URL FLAGS``.

    Raises:
        SystemExit: it said nothing.
    """
    command = load_command(url, flags)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return document_of(done.stdout, command)


def load_command(url: str, flags: Sequence[str | int | float]) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "app.cli", "load", "--url", url, *map(str, flags)]


def document_of(output: str, command: Sequence[str]) -> dict[str, Any]:
    """The last line, as JSON."""
    lines = output.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise SystemExit(f"no result from {' '.join(command)}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found
