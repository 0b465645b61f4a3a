"""Runs the parts of a command in a process, which is replaced after an error: a fault leaves no usable CUDA context."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from app.reporting.report import markdown
from benchmarks.gpu.running.results import ARCHIVE, Results, describe_machine
from benchmarks.gpu.setting import GpuSetting, MeasurementPart, Row

LIMIT_FACTOR = 2  # of a part's estimate; the budget limits it as well


def parts_of(command: str) -> Sequence[MeasurementPart]:
    """Return the parts of a command in their order."""
    parts: Sequence[MeasurementPart] = import_module(f"benchmarks.gpu.{command}").PARTS
    return parts


def run_parts(command: str, parts: Sequence[MeasurementPart], setting: GpuSetting, out: Path, budget: float) -> int:
    """Run parts within ``budget`` minutes, print and write their results; returns 1 if anything failed or was wrong."""
    arguments = {"device": str(setting.device), "dtype": str(setting.dtype), "tiny": setting.is_tiny}
    results, worker = Results(out, command, arguments), Worker(command, setting)
    ends, summary = time.monotonic() + 60 * budget, list[list[str]]()
    try:
        for number, part in enumerate(parts, 1):
            print(f"\n[{number}/{len(parts)}] {part.name}: {part.question}", flush=True)
            began, error = time.monotonic(), "not started: the budget is used up"
            if (left := ends - began) > 0:
                limit = left if setting.is_tiny else min(left, 60 * LIMIT_FACTOR * part.minutes)
                error = worker.run(part.name, limit, partial(results.add_row, part.name)) or ""
                results.document["machine"] = worker.machine
            seconds = time.monotonic() - began
            tables, outcome = results.finish_part(part.name, seconds, error)
            summary.append([part.name, outcome, f"{seconds:.1f}"])
            print(f"\n{tables}\n{error}\n{part.name}: {outcome}, {seconds:.1f} s", flush=True)
    finally:
        worker.stop()
    summarized = markdown(["part", "outcome", "seconds"], summary, n_names=2)
    print(f"\n{worker.machine.get('name', 'CPU')}: {out / ARCHIVE}\n\n{summarized}", flush=True)
    return int(any(outcome != "ok" for _, outcome, _ in summary))


class Worker:
    """Runs parts of a command one after the other in a process that starts with the first."""

    def __init__(self, command: str, setting: GpuSetting) -> None:
        self._command, self._setting = command, setting
        self._process: Any = None
        self._connection: Any = None
        self.machine: Mapping[str, Any] = {}

    def run(self, name: str, seconds: float, keep: Callable[[Row], None]) -> str | None:
        """Pass each row of a part to ``keep`` when it is measured; returns the error that ended the part, or None.

        The process is killed after ``seconds``.
        """
        ends, error = time.monotonic() + seconds, f"ended at its limit of {seconds / 60:.1f} minutes"
        try:
            self._start()
            self._connection.send((name, ends))
            while self._connection.poll(max(0.0, ends - time.monotonic())):
                kind, content = self._connection.recv()
                if kind == "row":
                    keep(content)
                elif kind == "machine":
                    self.machine = content
                elif content is None:
                    return None
                else:
                    error = content
                    break
        except (EOFError, OSError):
            self._process.join()
            error = f"the process ended with exit status {self._process.exitcode}"
        self.stop()
        return error

    def stop(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def _start(self) -> None:
        if self._process is None:
            context = get_context("spawn")
            self._connection, of_worker = context.Pipe()
            given = of_worker, self._command, self._setting
            self._process = context.Process(target=_serve_parts, args=given, daemon=True)
            self._process.start()
            of_worker.close()  # else the end of the process would not close the pipe


def _serve_parts(connection: Connection, command: str, setting: GpuSetting) -> None:
    """Run the parts whose names arrive, until the process is killed."""
    if not setting.is_cuda:
        from benchmarks.gpu.running.interpreter import prepare_interpreter

        torch.set_num_threads(1)  # threads of small products wait for each other
        prepare_interpreter()
    parts = {part.name: part for part in parts_of(command)}
    connection.send(("machine", describe_machine(setting)))
    while True:
        name, deadline = connection.recv()  # of a clock that processes share
        setting.release_memory()
        try:
            for row in parts[name].run(replace(setting, deadline=deadline)):
                connection.send(("row", row))
            setting.synchronize()  # a fault of a kernel is reported within its part
            connection.send(("end", None))
        except Exception:
            connection.send(("end", traceback.format_exc()))
