"""The JSON files of a run: one a check, with its table; complete ones of the same sources and arguments stand."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from app.reporting.documents import write_document
from app.reporting.tables import NOTHING, markdown
from benchmarks.gpu.running.checks import CHECKS, ROOM, Check
from benchmarks.gpu.setting import Report, Setting

ROOT = ROOM.parents[1]
PACKAGES = ("torch", "triton", "transformers", "numpy", "numba", "msgspec")


def sources(check: Check) -> str:
    """Hash of all that a check's answer depends on: the packages it may use and this room, other checks left out.

    So a mended check does not make the others run again, and a mended engine does. It needs no git.
    """
    others = {one.module for one in CHECKS.values() if one != check}
    digest = hashlib.sha256()
    for package in (ROOT / "engine", ROOT / "speculators", ROOT / "tools", ROOM):
        for path in sorted(package.rglob("*.py")):
            if path not in others:
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def commit() -> str:
    """The checkout's commit; "" in a copy, or without git."""
    if shutil.which("git") is None:
        return ""
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return asked.stdout.strip()


def machine(setting: Setting) -> dict[str, Any]:
    """What the figures were measured on."""
    found: dict[str, Any] = {"python": platform.python_version(), "processor": platform.machine()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    if setting.on_cuda:
        properties = torch.cuda.get_device_properties(setting.device)
        found |= {"gpu": properties.name, "gpu_gib": properties.total_memory / 2**30, "cuda": torch.version.cuda}
    return found


def arguments(setting: Setting) -> dict[str, Any]:
    """What tells one run of a check from another, beside the sources."""
    return {"device": str(setting.device), "dtype": setting.dtype_name, "tiny": setting.tiny}


def cell(value: str | float | None) -> str:
    """One cell of a table."""
    if value is None:
        return NOTHING
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)


def table(report: Report) -> str:
    """The report as Markdown, with the tables that follow it."""
    lines = [f"## {report.title}", ""]
    if report.rows:
        lines.append(markdown(list(report.columns), [[cell(value) for value in row] for row in report.rows]))
    lines += ["", *(f"* {note}" for note in report.notes)]
    return "\n\n".join(["\n".join(lines).rstrip(), *(table(one) for one in report.further)])


def figures(report: Report) -> dict[str, Any]:
    """The report's document, and by title those of the tables that follow it."""
    return {**report.document, **{one.title: figures(one) for one in report.further}}


def parts(found: Mapping[str, Any], kind: str) -> list[str]:
    """The parts that ``failed`` or were ``late``, of a report's figures and those of the tables that follow it."""
    further = [name for one in found.values() if isinstance(one, dict) for name in parts(one, kind)]
    return [*found.get(kind, ()), *further]


def forget(out: Path, check: Check) -> None:
    """Remove a check's document: an older answer must not pass for the one to come."""
    (out / f"{check.name}.json").unlink(missing_ok=True)


def read(out: Path, check: Check) -> dict[str, Any]:
    """A check's document; {} if there is none, or half of one."""
    try:
        found = json.loads((out / f"{check.name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def stands(setting: Setting, check: Check) -> bool:
    """Whether the setting's folder holds a complete answer of the same sources and arguments."""
    document = read(setting.out, check)
    same = document.get("sources") == sources(check) and document.get("arguments") == arguments(setting)
    return bool(document.get("complete")) and same


def write(setting: Setting, check: Check, seconds: float, found: Mapping[str, Any], finished: bool = True) -> None:
    """Keep what a check found, or its ``error``, or both, in the setting's folder.

    It is complete if it is finished, without an error, and nothing was left out for want of time. A part that failed
    would fail again.
    """
    complete = finished and "error" not in found and not parts(found.get("found", {}), "late")
    head = {
        "check": check.name,
        "complete": complete,
        "arguments": arguments(setting),
        "sources": sources(check),
        "commit": commit(),
        "seconds": round(seconds, 1),
    }
    whole = setting.out / f"{check.name}.json"
    unfinished = whole.with_suffix(".part")
    write_document(head | dict(found) | head, unfinished)  # what was found may be an older document
    unfinished.replace(whole)


def tables(out: Path) -> str:
    """The tables of all checks that a folder has documents of."""
    found = []
    for document in (read(out, check) for check in CHECKS.values()):
        if document:
            lacking = document.get("error") or "parts of it came too late, or it was broken off"
            written = document.get("table") or f"## {document['check']}"
            found.append(written if document["complete"] else f"{written}\n\nNot complete: {lacking}.")
    return "\n\n".join(found)
