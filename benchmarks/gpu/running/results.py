"""The results of a command: a JSON file, the same as tables, and the archive of the folder."""

from __future__ import annotations

import platform
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from app.reporting.report import NOTHING, markdown, write_document
from benchmarks.gpu.setting import GpuSetting, Row, Value

REPOSITORY = Path(__file__).parents[3]
ARCHIVE = "results.tar.gz"
PACKAGES = ("torch", "triton", "transformers", "numpy", "numba", "msgspec")
PROPERTIES = ("name", "total_memory", "major", "minor", "multi_processor_count", "shared_memory_per_block_optin")


def describe_machine(setting: GpuSetting) -> dict[str, Any]:
    """Return versions and, where they are known, the commit and properties of the card."""
    found: dict[str, Any] = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    with suppress(FileNotFoundError):
        git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True)
        found["commit"] = git.stdout.strip()
    if setting.is_cuda:
        card = torch.cuda.get_device_properties(setting.device)
        found |= {name: getattr(card, name, None) for name in PROPERTIES}
    return found


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


class Results:
    """The files of one command."""

    def __init__(self, out: Path, command: str, arguments: Mapping[str, Any]) -> None:
        self._out, self._path = out, out / f"{command}.json"
        self._parts: dict[str, dict[str, Any]] = {}
        self.document = {"command": command, "arguments": dict(arguments), "machine": {}, "parts": self._parts}
        out.mkdir(parents=True, exist_ok=True)
        self._path.with_suffix(".md").write_text(f"# {command}\n")

    def add_row(self, part: str, row: Row) -> None:
        """Keep a row of an unfinished part."""
        self._part(part)["rows"].append(dict(row))
        self._write()

    def finish_part(self, name: str, seconds: float, error: str) -> tuple[str, str]:
        """Record how a part ended and pack the archive; returns its tables, and "ok" or what went wrong."""
        part = self._part(name)
        part |= {"finished": not error, "seconds": round(seconds, 1), "error": error}
        self._write()
        failed = sum("failed" in row for row in part["rows"])
        wrong = sum(row.get("ok") is False for row in part["rows"])
        problems = error.strip().splitlines()[-1:] + [f"failed measurements: {failed}"] * bool(failed)
        outcome = "; ".join(problems + [f"wrong results: {wrong}"] * bool(wrong)) or "ok"
        tables = format_tables(part["rows"])
        with self._path.with_suffix(".md").open("a", encoding="utf-8") as file:
            file.write(f"\n## {name}: {outcome}, {seconds:.1f} s\n\n{tables}\n")
        with tarfile.open(self._out / ARCHIVE, "w:gz") as archive:
            for path in sorted([*self._out.glob("*.json"), *self._out.glob("*.md")]):
                archive.add(path, path.name)
        return tables, outcome

    def _part(self, name: str) -> dict[str, Any]:
        return self._parts.setdefault(name, {"finished": False, "rows": []})

    def _write(self) -> None:
        unfinished = self._path.with_suffix(".part")
        write_document(self.document, unfinished)
        unfinished.replace(self._path)
