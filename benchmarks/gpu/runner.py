"""Runs the parts of a command in a process, which is replaced after an error: a fault leaves no usable CUDA context."""

from __future__ import annotations

import json
import platform
import signal
import subprocess
import tarfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from app.reporting.report import NOTHING, markdown, write_document
from benchmarks.gpu.setting import GpuSetting, MeasurementPart, Row, Value
from benchmarks.support.reporting import BenchmarkReport

REPOSITORY = Path(__file__).parents[2]
ARCHIVE = "results.tar.gz"
LIMIT_FACTOR = 2  # of a part's estimate; the budget limits it as well
PACKAGES = ("torch", "triton", "transformers", "numpy", "numba", "msgspec")


def load_parts(command: str) -> dict[str, MeasurementPart]:
    """Return the parts of a command by name, in their order."""
    return {part.name: part for part in import_module(f"benchmarks.gpu.{command}").PARTS}


def run_parts(command: str, names: Sequence[str], setting: GpuSetting, out: Path, minutes: float) -> int:
    """Run parts within ``minutes``, print and write their results; returns 1 if anything failed or was wrong."""
    results, ends = PartResults(out, command, names), time.monotonic() + 60 * minutes
    results.begin()
    while name := results.find_next():
        if time.monotonic() >= ends:
            results.finish_part(name, "not started: the budget is used up")
            continue
        process = get_context("spawn").Process(target=_run_worker, args=(results, setting, ends), daemon=True)
        process.start()
        process.join()
        results.load()
        if process.exitcode and (name := results.find_next()):
            is_late, status = process.exitcode == -signal.SIGALRM, f"exit status {process.exitcode}"
            results.finish_part(name, "ended at its time limit" if is_late else f"the process ended with {status}")
    return results.publish()


def _run_worker(results: PartResults, setting: GpuSetting, ends: float) -> None:
    """Run parts until one fails or the budget is used up; an alarm kills this process at a part's limit."""
    signal.setitimer(signal.ITIMER_REAL, max(0.1, ends - time.monotonic()))
    if setting.is_tiny:
        from benchmarks.gpu.interpreter import prepare_interpreter

        torch.set_num_threads(1)  # threads of small products wait for each other
        prepare_interpreter()
    parts = load_parts(results.command)
    results.document["machine"] = describe_machine(setting)
    while (name := results.find_next()) and (left := ends - time.monotonic()) > 0:
        setting.release_memory()
        results.begin_part(name)
        try:
            part = parts[name]
            print(f"\n{name}: {part.question}", flush=True)
            limit = left if setting.is_tiny else min(left, 60 * LIMIT_FACTOR * part.minutes)
            signal.setitimer(signal.ITIMER_REAL, limit)
            for row in part.run(setting):
                results.add_row(name, row)
            setting.synchronize()  # a fault of a kernel is reported within its part
        except Exception:
            return results.finish_part(name, traceback.format_exc())
        results.finish_part(name, "")
    return None


def describe_machine(setting: GpuSetting) -> dict[str, Any]:
    """Return versions and, where they are known, the commit and properties of the card."""
    found: dict[str, Any] = {"device": str(setting.device), "python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    with suppress(FileNotFoundError):
        git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True)
        found["commit"] = git.stdout.strip()
    if not setting.is_tiny:
        found["card"] = str(torch.cuda.get_device_properties(setting.device))
    return found


class PartResults:
    """Writes what parts of a command measure to OUT/COMMAND.json and OUT/COMMAND.md, and packs the folder."""

    def __init__(self, out: Path, command: str, names: Sequence[str]) -> None:
        self.command, self._out, self._path = command, out, out / f"{command}.json"
        parts: dict[str, dict[str, Any]] = {name: {"outcome": None, "seconds": 0.0, "rows": []} for name in names}
        self.document: dict[str, Any] = {"command": command, "machine": {}, "parts": parts}

    def begin(self) -> None:
        """Replace the files of an earlier run."""
        self._out.mkdir(parents=True, exist_ok=True)
        self._path.with_suffix(".md").write_text(f"# {self.command}\n\n", encoding="utf-8")
        self.write()

    def load(self) -> None:
        """Read what another process has written."""
        self.document = json.loads(self._path.read_text(encoding="utf-8"))

    def write(self) -> None:
        """Write the JSON file; a reader finds it whole."""
        unfinished = self._path.with_suffix(".part")
        write_document(self.document, unfinished)
        unfinished.replace(self._path)

    def find_next(self) -> str | None:
        """Return the first part that has not ended."""
        return next((name for name, part in self.document["parts"].items() if part["outcome"] is None), None)

    def begin_part(self, name: str) -> None:
        self.document["parts"][name]["began"] = time.time()
        self.write()

    def add_row(self, name: str, row: Row) -> None:
        self.document["parts"][name]["rows"].append(dict(row))
        self.write()

    def finish_part(self, name: str, error: str) -> None:
        """Print how a part ended and its tables, write both, and pack the archive."""
        part = self.document["parts"][name]
        rows, seconds = part["rows"], round(time.time() - part.get("began", time.time()), 1)
        failed, wrong = sum("failed" in row for row in rows), sum(row.get("ok") is False for row in rows)
        problems = error.strip().splitlines()[-1:] + [f"failed measurements: {failed}"] * bool(failed)
        outcome = "; ".join(problems + [f"wrong results: {wrong}"] * bool(wrong)) or "ok"
        part |= {"outcome": outcome, "seconds": seconds, "error": error}
        self.write()
        print(f"\n{format_tables(rows)}\n{error}\n{name}: {outcome}, {seconds} s", flush=True)
        with self._path.with_suffix(".md").open("a", encoding="utf-8") as file:
            file.write(f"## {name}: {outcome}, {seconds} s\n\n{format_tables(rows)}\n\n")
        with tarfile.open(self._out / ARCHIVE, "w:gz") as archive:
            for path in sorted([*self._out.glob("*.json"), *self._out.glob("*.md")]):
                archive.add(path, path.name)

    def publish(self) -> int:
        """Print the outcomes, as a table and as JSON; returns the exit status."""
        parts = self.document["parts"]
        outcomes = {name: part["outcome"] for name, part in parts.items()}
        body = [[name, outcome, f"{parts[name]['seconds']}"] for name, outcome in outcomes.items()]
        table = markdown(["part", "outcome", "seconds"], body, n_names=2)
        print(f"\n{table}\n", flush=True)
        document = self.document | {"archive": str(self._out / ARCHIVE), "parts": outcomes}
        return BenchmarkReport(document, table, any(outcome != "ok" for outcome in outcomes.values())).publish(None)


def format_tables(rows: Sequence[Row]) -> str:
    """Return Markdown: one table for each run of rows with the same headings."""
    groups = ((head, [list(map(format_value, row.values())) for row in some]) for head, some in groupby(rows, tuple))
    return "\n\n".join(markdown(head, body) for head, body in groups)


def format_value(value: Value) -> str:
    """Return a cell: floats with three significant digits."""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return NOTHING if value is None else str(value)
