"""The commands for a machine with a GPU run here in tiny sizes, as on a machine that has few packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.__main__ import COMMANDS
from benchmarks.gpu.measuring.models import LLAMA_8B, LLAMA_70B, fit_layers
from benchmarks.gpu.runner import ARCHIVE, REPOSITORY, load_parts, run_parts
from benchmarks.gpu.setting import GpuSetting, attempt

# Python imports this module at the start of every process. Imports of this repository's packages that the machine lacks
# fail; other packages may look for whatever they like, but not find the server's packages.
BARE_MACHINE = """
import sys

OURS = {"app", "benchmarks", "deployments", "engine", "retrieval_store", "speculators", "tools"}
THERE = {"torch", "triton", "transformers", "safetensors", "tokenizers", "tqdm", "numpy", "numba", "msgspec"}
LACKING = {"ray", "redis", "pydantic", "fastapi", "starlette", "uvicorn", "httpx", "marisa_trie", "xxhash"}


class BareMachine:
    def find_spec(self, name, path, target=None):
        root, frame = name.partition(".")[0], sys._getframe(1)
        while frame and frame.f_globals.get("__name__", "").startswith("importlib"):
            frame = frame.f_back
        importer = frame.f_globals.get("__name__", "").partition(".")[0] if frame else ""
        is_known = root in OURS | THERE | set(sys.stdlib_module_names)
        if root in LACKING or (importer in OURS | {"__main__"} and not is_known):
            raise ImportError(f"{importer} imports {name}, which a bare machine lacks")


sys.meta_path.insert(0, BareMachine())
"""
TINY = GpuSetting(torch.device("cpu"))
QUICK_PARTS = ["attention", "steps", "draws"]
SLOW_PARTS = ["card", "products", "tuning", "executor", "fast"]


def run_on_bare_machine(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """Run a command, which must succeed, and return its document."""
    (tmp_path / "sitecustomize.py").write_text(BARE_MACHINE)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments, "--tiny", "--budget", "60", "--out", str(tmp_path)]
    ran = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    document: dict[str, Any] = json.loads((tmp_path / f"{arguments[0]}.json").read_text())
    assert json.loads(ran.stdout.splitlines()[-1])["parts"] == dict.fromkeys(document["parts"], "ok")
    for name, part in document["parts"].items():
        assert part["rows"], name
        assert f"## {name}: ok, " in (tmp_path / f"{arguments[0]}.md").read_text()
    return document


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(QUICK_PARTS, marks=pytest.mark.cluster, id="quick"),
        pytest.param(SLOW_PARTS, marks=pytest.mark.matrix, id="slow"),
    ],
)
def test_first_finds_nothing_wrong_on_a_machine_without_the_server_s_packages(tmp_path: Path, parts: list[str]) -> None:
    document = run_on_bare_machine(tmp_path, "first", "--parts", ",".join(parts))
    assert list(document["parts"]) == parts
    with tarfile.open(tmp_path / ARCHIVE) as archive:
        assert archive.getnames() == ["first.json", "first.md"]


def test_the_parts_that_tests_run_are_those_of_first() -> None:
    assert sorted(QUICK_PARTS + SLOW_PARTS) == sorted(load_parts("first"))


@pytest.mark.matrix
@pytest.mark.parametrize("command", COMMANDS[1:])
def test_other_commands_find_nothing_wrong(tmp_path: Path, command: str) -> None:
    document = run_on_bare_machine(tmp_path, command)
    assert list(document["parts"]) == list(load_parts(command))


@pytest.mark.cluster
def test_a_part_runs_after_one_that_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert run_parts("first", ["unknown", "draws"], TINY, tmp_path, 60) == 1
    parts = json.loads((tmp_path / "first.json").read_text())["parts"]
    assert parts["unknown"]["error"].endswith("KeyError: 'unknown'\n")
    assert parts["draws"]["outcome"] == "ok"
    assert "| unknown | KeyError: 'unknown'" in capsys.readouterr().out


@pytest.mark.cluster
def test_a_part_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert run_parts("first", ["products"], TINY, tmp_path, 0.15) == 1
    part = json.loads((tmp_path / "first.json").read_text())["parts"]["products"]
    assert part["outcome"] == "ended at its time limit"


def test_a_part_does_not_start_after_the_budget(tmp_path: Path) -> None:
    assert run_parts("first", ["draws"], TINY, tmp_path, 0) == 1
    parts = json.loads((tmp_path / "first.json").read_text())["parts"]
    assert parts["draws"]["error"] == "not started: the budget is used up"
    with tarfile.open(tmp_path / ARCHIVE) as archive:
        assert "first.json" in archive.getnames()


def test_a_failed_measurement_leaves_the_rows_before_it() -> None:
    def measure() -> Any:
        yield {"figure": 1}
        raise ValueError("no more\nand why")

    rows = list(attempt(TINY, "figures", measure))
    assert rows == [{"figure": 1}, {"failed": "figures", "error": "ValueError: no more"}]


@pytest.mark.parametrize(("free", "n_layers"), [(150e9, 80), (83e9, 54), (20e9, 10)])
def test_a_card_gets_as_many_layers_of_70b_in_int8_as_fit_next_to_the_cache(free: float, n_layers: int) -> None:
    cached = 32 * 33 * 64
    assert fit_layers(LLAMA_70B, int(free), 1, cached).n_layers == n_layers


def test_8b_fits_an_h100_and_no_small_card() -> None:
    assert fit_layers(LLAMA_8B, int(83e9), 2, 4096) == LLAMA_8B
    with pytest.raises(ValueError, match="one layer of 8B"):
        fit_layers(LLAMA_8B, int(2e9), 2)
