"""Runs the parts of a command in their order, whatever becomes of any of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from app.reporting.tables import markdown
from benchmarks.gpu.running.results import ARCHIVE, Results
from benchmarks.gpu.running.worker import Worker
from benchmarks.gpu.setting import Part, Setting

LIMIT_FACTOR = 2  # of a part's estimate; the budget limits it as well


def run_parts(command: str, parts: Sequence[Part], setting: Setting, out: Path, budget: float) -> int:
    """Run parts, print each one's tables and time, write results; returns 1 if anything failed or was wrong.

    ``budget``: minutes for all parts together.
    """
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
    print(f"\nResults: {out / ARCHIVE}\n\n{markdown(['part', 'outcome', 'seconds'], summary, n_names=2)}", flush=True)
    return int(any(outcome != "ok" for _, outcome, _ in summary))
