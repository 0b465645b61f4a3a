"""What is printed and written at the end, and the exit status; not how anything was measured."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from benchmarks.retrieval_chaos.measurement import Result
from benchmarks.retrieval_chaos.pauses import net_of, pauses
from benchmarks.retrieval_chaos.plot import plot
from benchmarks.retrieval_chaos.rows import row_of, summary
from benchmarks.retrieval_chaos.snapshots import Snapshots
from benchmarks.retrieval_chaos.tables import tables


def document(settings: argparse.Namespace, result: Result, snapshots: Snapshots, rows: Any) -> dict[str, Any]:
    """What the last line says."""
    failures = [answer.failure for answer in result.answers if answer.failure]
    n_different = sum(answer.text != result.reference[answer.prompt] for answer in result.answers)
    return {
        "requests": len(result.answers),
        "failures": len(failures),
        "first_failures": failures[:3],
        "different_texts": n_different,
        "wrong": [f"{row['phase']}: {what}" for row in rows for what in row["wrong"]],
        "by_kind": summary(rows),
        "live": result.learnt,
        "snapshots": {
            name: {"version": snapshots.versions[name], "tokens": snapshots.tokens[name]} for name in snapshots.versions
        },
        "concurrency": settings.concurrency,
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "phases": rows,
    }


def report(settings: argparse.Namespace, result: Result, snapshots: Snapshots) -> int:
    """Print and write; the exit status."""
    gaps = pauses(result.answers)
    net = net_of(gaps, result.beats)
    rows = [row_of(phase, result, gaps, net) for phase in result.phases]
    found = document(settings, result, snapshots, rows)
    shown = tables(rows, {version: name for name, version in snapshots.versions.items()})
    print(shown)
    if settings.out is not None:
        settings.out.mkdir(parents=True, exist_ok=True)
        (settings.out / "table.md").write_text(shown)
        (settings.out / "result.json").write_text(json.dumps(found, indent=2) + "\n")
        plot(result, gaps, settings.out / "timeline.png")
    print(json.dumps(found))
    return int(bool(found["failures"] or found["different_texts"] or found["wrong"]))
