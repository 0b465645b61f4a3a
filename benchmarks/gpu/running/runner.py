"""Runs one check in this process, or several in processes of their own, whatever becomes of any of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from app.reporting.tables import markdown
from benchmarks.gpu.running.checks import Check
from benchmarks.gpu.running.results import ROOT, figures, forget, machine, parts, read, stands, table, write
from benchmarks.gpu.setting import Report, Setting

MARGIN = 0.9  # of its limit a check may plan with; the rest is for what it cannot foresee
GRACE_S = 5  # between a polite end and the other one


@dataclass(frozen=True, slots=True)
class Limits:
    """Minutes."""

    each: float  # of a check: it is ended then
    total: float  # of all: a check that needs more than is left is not begun


class Tables:
    """A check's tables as they grow: its document is written anew after every part, for the next may be the last."""

    def __init__(self, check: Check, setting: Setting) -> None:
        self._check, self._setting = check, setting
        self._began = time.monotonic()
        self._machine = machine(setting)  # now: a device may have a fault later
        self._tables: dict[str, Report] = {}

    def keep(self, report: Report) -> None:
        """Take one table as far as it is."""
        self._tables[report.title] = report
        first, *further = self._tables.values()
        self.write(replace(first, further=further), finished=False)

    def write(self, report: Report, finished: bool = True) -> str:
        """Write the check's document; returns the report as Markdown."""
        written = table(report)
        self._write({"machine": self._machine, "table": written, "found": figures(report)}, finished)
        return written

    def fail(self, error: Exception) -> None:
        """Add an error to what the document has."""
        said = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        self._write(read(self._setting.out, self._check) | said, False)

    def _write(self, found: dict[str, Any], finished: bool) -> None:
        write(self._setting, self._check, time.monotonic() - self._began, found, finished)


def run_here(check: Check, setting: Setting) -> int:
    """Run a check in this process, print its table, keep its document; returns the exit status."""
    forget(setting.out, check)
    tables = Tables(check, setting)
    print(f"{check.name}: {check.question}", flush=True)
    try:
        report = check.run(replace(setting, keep=tables.keep))
    except Exception as error:  # of any kind: the next check must run
        traceback.print_exc()
        tables.fail(error)
        return 1
    print(f"\n{tables.write(report)}", flush=True)
    return 0


def run_all(checks: Sequence[Check], setting: Setting, limits: Limits, flags: Sequence[str], again: bool) -> int:
    """Run checks one after the other, each in a process; returns 1 if anything failed or is missing."""
    ends = time.monotonic() + 60 * limits.total
    rows: list[list[str]] = []
    for place, check in enumerate(checks, 1):
        left = (ends - time.monotonic()) / 60
        if not again and stands(setting, check):
            document = read(setting.out, check)
            outcome, took = _outcome(document, "done before"), document["seconds"]
        elif left < (0 if setting.tiny else check.minutes):
            outcome, took = f"not begun: it needs {check.minutes:g} minutes, {max(0.0, left):.1f} are left", 0.0
        else:
            print(f"\n[{place}/{len(checks)}] {check.name}, {left:.1f} minutes left in all", flush=True)
            outcome, took = _in_process(check, setting, min(limits.each, left), flags)
        rows.append([check.name, outcome, f"{took:.0f}"])
        print(f"[{place}/{len(checks)}] {check.name}: {outcome}", flush=True)
    print(f"\nFiles in {setting.out}.\n\n{markdown(['check', 'outcome', 'seconds'], rows, n_names=2)}", flush=True)
    return int(any(outcome not in ("done", "done before") for _, outcome, _ in rows))


def _in_process(check: Check, setting: Setting, minutes: float, flags: Sequence[str]) -> tuple[str, float]:
    """What became of a check, and the seconds it took."""
    command = [sys.executable, "-m", "benchmarks.gpu", check.name, "--minutes", f"{minutes:.3f}", *flags]
    began = time.monotonic()
    forget(setting.out, check)
    child = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONUNBUFFERED": "1"}, process_group=0)
    error = ""
    try:
        child.wait(60 * minutes)
    except subprocess.TimeoutExpired:
        error = f"ended at its limit of {minutes:.1f} minutes"
    finally:
        _end(child)
    took = time.monotonic() - began
    document = read(setting.out, check)
    if (child.returncode or not document) and "error" not in document and not document.get("complete"):
        ended = f"ended with exit status {child.returncode}" + " and no document" * (not document)
        document["error"] = error or ended
        write(setting, check, took, document)
    return _outcome(document, "done"), took


def _outcome(document: dict[str, Any], done: str) -> str:
    """What a document says of its check: ``done``, or what is missing."""
    if "error" in document:
        return f"failed: {(str(document['error']).splitlines() or [''])[0]}"
    missing = {kind: len(parts(document["found"], kind)) for kind in ("failed", "late")}
    said = [f"{kind} parts: {n}" for kind, n in missing.items() if n]
    return "; ".join([done if document["complete"] else "not complete", *said])


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a check if it is still there, and what it started, which may outlive it."""
    if child.poll() is None:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
