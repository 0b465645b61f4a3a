"""The checks for a borrowed GPU: each runs here in a tiny geometry, so that none fails there for a typo."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.__main__ import parsed
from benchmarks.gpu.measuring.rows import Rows
from benchmarks.gpu.running.checks import CHECKS, ROOM, Check
from benchmarks.gpu.running.results import read, sources, stands, table, tables
from benchmarks.gpu.running.runner import Limits, run_all, run_here
from benchmarks.gpu.running.wheels import command, pinned
from benchmarks.gpu.setting import Report, Setting

ROOT = ROOM.parents[1]
ALL_OF_THEM = """
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


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of all checks, run one after the other in a process that imports no more than a bare machine has."""
    folder = tmp_path_factory.mktemp("gpu")
    ran = subprocess.run(
        [sys.executable, "-c", ALL_OF_THEM, str(folder), *CHECKS], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    return folder


def setting(out: Path) -> Setting:
    return Setting(torch.device("cpu"), torch.float32, True, out, time.monotonic() + 600)


@pytest.mark.parametrize("check", CHECKS.values(), ids=lambda check: check.name)
def test_a_check_answers_with_a_table_and_a_document(check: Check, out: Path) -> None:
    document = json.loads((out / f"{check.name}.json").read_text())
    assert document["complete"]
    assert document["arguments"] == {"device": "cpu", "dtype": "float32", "tiny": True}
    assert document["machine"]["torch"] == torch.__version__
    assert document["found"]
    assert document["table"].startswith("## ")
    assert " failed: " not in document["table"]
    assert document["table"] in tables(out)
    assert check.question.endswith("?")


def test_all_repeats_what_was_late_and_goes_on_after_a_failure(out: Path, capfd: pytest.CaptureFixture[str]) -> None:
    missing = Check("missing", 0)
    first, *others = CHECKS.values()
    assert run_here(first, replace(setting(out), deadline=0.0)) == 0
    document = read(out, first)
    assert document["found"]["late"]
    assert not document["complete"]
    assert not stands(setting(out), first)
    flags = ["--tiny", "--out", str(out), "--device", "cpu", "--dtype", "float32"]
    assert run_all([missing, first, *others], setting(out), Limits(5, 5), flags, again=False) == 1
    lines = [line.split("|")[1:3] for line in capfd.readouterr().out.split("\n") if line.startswith("| ")]
    outcomes = {name.strip(): outcome.strip() for name, outcome in lines}
    assert outcomes["missing"] == "failed: ended with exit status 2 and no document"
    assert outcomes[first.name] == "done"
    assert {outcomes[check.name] for check in others} == {"done before"}
    assert not json.loads((out / "missing.json").read_text())["complete"]


@dataclass(frozen=True)
class Given(Check):
    """A check that measures one part, and then does what a test says."""

    then: Callable[[Rows], None]
    text = "What becomes of the first part?"

    def run(self, setting: Setting) -> Report:
        rows = Rows(setting, "t", {"n": "number"})
        rows.attempt("first", lambda: [{"n": 41}])
        self.then(rows)
        return rows.report()


def test_a_check_that_fails_after_some_rows_keeps_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fault(rows: Rows) -> None:
        so_far = read(tmp_path, check)
        assert (so_far["complete"], so_far["found"]["rows"]) == (False, [{"n": 41}])
        raise RuntimeError("a fault of the device")

    check = Given("probe", 0, fault)
    assert run_here(check, setting(tmp_path)) == 1
    document = read(tmp_path, check)
    assert document["error"] == "RuntimeError: a fault of the device"
    assert document["found"]["rows"] == [{"n": 41}]
    assert not document["complete"]
    assert not stands(setting(tmp_path), check)
    shown = tables(tmp_path)
    assert "| 41 " in shown
    assert shown.endswith("Not complete: RuntimeError: a fault of the device.")


def test_a_part_that_failed_is_said_and_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check = Given("probe", 0, lambda rows: rows.attempt("second", lambda: [{"n": 1 // 0}]))
    assert run_here(check, setting(tmp_path)) == 0
    assert stands(setting(tmp_path), check)
    assert run_all([check], setting(tmp_path), Limits(1, 1), [], again=False) == 1
    assert "probe: done before; failed parts: 1" in capsys.readouterr().out


def test_a_check_that_is_killed_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(command: list[str], **given: Any) -> subprocess.Popen[bytes]:
        monkeypatch.undo()
        with pytest.raises(KeyboardInterrupt):
            run_here(check, setting(tmp_path))
        return real([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], **given)

    def interrupt(rows: Rows) -> None:
        raise KeyboardInterrupt

    check, real = Given("probe", 0, interrupt), subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", killed)
    assert run_all([check], setting(tmp_path), Limits(1, 1), [], again=False) == 1
    document = read(tmp_path, check)
    assert (document["error"], document["complete"]) == ("ended with exit status -9", False)
    assert document["found"]["rows"] == [{"n": 41}]


def test_an_answer_stands_for_its_own_sources_and_arguments_only(out: Path) -> None:
    check = next(iter(CHECKS.values()))
    assert stands(setting(out), check)
    other = Setting(torch.device("cpu"), torch.bfloat16, True, out, 0.0)
    assert not stands(other, check)
    assert len({sources(one) for one in CHECKS.values()}) == len(CHECKS)
    (out / f"{check.name}.json").write_text('{"complete": tr')
    assert not stands(setting(out), check)


def test_what_is_not_begun_for_want_of_time_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large = Setting(torch.device("cpu"), torch.float32, False, tmp_path, 0.0)
    assert run_all([Check("probe", 4)], large, Limits(10, 2), [], again=False) == 1
    assert "not begun: it needs 4 minutes, 2.0 are left" in capsys.readouterr().out


def test_a_table_shows_figures_that_count() -> None:
    shown = table(Report("t", ("a", "b", "c"), [("x", 1234.5, None), ("y", 0.012345, 3)], ["A note."]))
    assert [line.split() for line in shown.split("\n")[4:6]] == [
        ["|", "x", "|", "1,234", "|", "-", "|"],
        ["|", "y", "|", "0.0123", "|", "3", "|"],
    ]
    assert shown.endswith("* A note.")


def test_help_lists_every_check_with_its_question(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        parsed(["--help"])
    text = capsys.readouterr().out
    assert all(check.question in text for check in CHECKS.values())


def test_wheels_are_asked_for_as_pinned_and_for_the_other_machine() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert pinned("msgspec") in project["dependencies"]
    assert pinned("torch==2.11.0") == "torch==2.11.0"
    asked = command(Path("wheels"), ["msgspec"], "3.12")
    assert asked[-1] == pinned("msgspec")
    assert asked[asked.index("--python-version") + 1] == "3.12"
    assert {"--no-deps", "--only-binary=:all:", "manylinux_2_28_x86_64"} <= set(asked)
