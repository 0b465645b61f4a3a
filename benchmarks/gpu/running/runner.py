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
from dataclasses import dataclass

from app.reporting.tables import markdown
from benchmarks.gpu.running.checks import Check
from benchmarks.gpu.running.results import ROOT, figures, machine, read, stands, table, write
from benchmarks.gpu.setting import Setting

MARGIN = 0.9  # of its limit a check may plan with; the rest is for what it cannot foresee
GRACE_S = 5  # between a polite end and the other one


@dataclass(frozen=True, slots=True)
class Limits:
    """Minutes."""

    each: float  # of a check: it is ended then
    total: float  # of all: a check that needs more than is left is not begun


def run_here(check: Check, setting: Setting) -> int:
    """Run a check in this process, print its table, keep its document; returns the exit status."""
    began = time.monotonic()
    print(f"{check.name}: {check.question}", flush=True)
    try:
        report = check.run(setting)
    except Exception as error:  # of any kind: the next check must run
        traceback.print_exc()
        found = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        write(setting, check, time.monotonic() - began, found)
        return 1
    written = table(report)
    found_all = {"machine": machine(setting), "table": written, "found": figures(report)}
    write(setting, check, time.monotonic() - began, found_all)
    print(f"\n{written}", flush=True)
    return 0


def run_all(checks: Sequence[Check], setting: Setting, limits: Limits, flags: Sequence[str], again: bool) -> int:
    """Run checks one after the other, each in a process; returns 1 if one failed or was not begun."""
    ends = time.monotonic() + 60 * limits.total
    rows: list[list[str]] = []
    for place, check in enumerate(checks, 1):
        left = (ends - time.monotonic()) / 60
        if not again and stands(setting, check):
            outcome, took = "done before", read(setting.out, check)["seconds"]
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
    (setting.out / f"{check.name}.json").unlink(missing_ok=True)  # an older answer must not pass for this one
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
    if not document:
        error = error or f"ended with exit status {child.returncode} and no document"
        write(setting, check, took, {"error": error})
    elif not document["complete"]:
        error = str(document["error"])
    return (f"failed: {error.splitlines()[0]}" if error else "done"), took


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a check and what it started, if it is still there."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(child.pid, how)
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)
