"""Runs a test's script in a process of its own, because Ray is started once in a process, with one environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TIMEOUT_S = 800


def run_script(script: str, checkpoint: Path, **environment: str) -> dict[str, Any]:
    """Run a script, to which ``sys.argv`` names a checkpoint and a folder; returns the JSON that it printed last."""
    with tempfile.TemporaryDirectory(prefix="rn-") as folder:
        command = [sys.executable, "-c", script, str(checkpoint), folder]
        given = os.environ | environment
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=given)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def same(answers: list[list[int]], undisturbed: list[int]) -> bool:
    """Whether both clients of ``Nodes.disturbed`` got the undisturbed ids, every time."""
    return len(answers) >= 2 and all(answer == undisturbed for answer in answers)
