"""The checks for a borrowed GPU run here in a tiny geometry."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.running.checks import CHECKS, ROOM
from benchmarks.gpu.running.results import tables

ALL_CHECKS = """
import sys
from importlib.abc import MetaPathFinder

OURS = {"app", "benchmarks", "deployments", "engine", "retrieval_store", "speculators", "tools"}
THERE = {"torch", "transformers", "accelerate", "safetensors", "tokenizers", "tqdm", "numpy", "numba", "msgspec"}
OPTIONAL = {"triton", "flash_attn"}
LACKING = {"ray", "redis", "pydantic", "fastapi", "starlette", "uvicorn", "marisa_trie"}


class BareMachine(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        root, frame = name.partition(".")[0], sys._getframe(1)
        while frame.f_globals.get("__name__", "").startswith("importlib"):
            frame = frame.f_back
        importer = frame.f_globals.get("__name__", "").partition(".")[0]
        known = root in OURS | THERE | OPTIONAL | set(sys.stdlib_module_names)
        if root in LACKING or (importer in OURS and not known) or name in ("app.config", "deployments"):
            raise ImportError(f"{importer} imports {name}, which a bare machine lacks")


sys.meta_path.insert(0, BareMachine())
from benchmarks.gpu.__main__ import main
from tests.support.quick_interpreter import quicken

quicken()
out, *names = sys.argv[1:]
for name in names:
    assert main([name, "--tiny", "--out", out]) == 0, name
"""


@pytest.mark.matrix
def test_every_check_completes_on_a_machine_without_the_server_s_packages(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ALL_CHECKS, str(tmp_path), *CHECKS]
    ran = subprocess.run(command, cwd=ROOM.parents[1], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    for check in CHECKS.values():
        document = json.loads((tmp_path / f"{check.name}.json").read_text())
        assert document["complete"]
        assert document["found"]
        assert document["table"].startswith("## ")
        assert " failed: " not in document["table"]
        assert document["table"] in tables(tmp_path)
