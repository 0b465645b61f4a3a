"""What is printed and written at the end, and the exit status; not how anything was measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.chaos.phases import Phase, longest_pause, unready
from benchmarks.chaos.plot import plot
from benchmarks.chaos.streams import Streams
from benchmarks.chaos.watch import Watch

HEAD = ("blow", "pid", "replaced s", "not ready s", "longest pause s", "recovered s", "broken streams", "notes")


def rows_of(phases: Sequence[Phase], streams: Streams, watch: Watch) -> list[dict[str, Any]]:
    """A row per blow."""
    rows = []
    for phase in phases:
        longest, recovered = longest_pause(phase, streams)
        first, last = unready(phase, watch.looks)
        broken = [b for _, b in streams.breaks if phase.struck <= b.at <= phase.ended]
        rows.append(
            {
                "blow": phase.blow.name,
                "pid": phase.pid,
                "replaced_seconds": _rounded(phase.replaced),
                "not_ready_from": _rounded(first),
                "not_ready_until": _rounded(last),
                "longest_pause": round(longest, 2),
                "recovered_seconds": round(recovered, 2),
                "broken_streams": len(broken),
                "notes": [*phase.notes, *_unexpected(phase, len(broken))],
            }
        )
    return rows


def _unexpected(phase: Phase, n_broken: int) -> list[str]:
    if n_broken and not phase.blow.breaks_streams:
        return [f"{n_broken} streams broke, which only the loss of an ingress may do"]
    return []


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    lines = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    for row in rows:
        span = "" if row["not_ready_from"] is None else f"{row['not_ready_from']} - {row['not_ready_until']}"
        cells = [row["blow"], row["pid"], row["replaced_seconds"], span, row["longest_pause"]]
        cells += [row["recovered_seconds"], row["broken_streams"], "; ".join(row["notes"])]
        lines.append("| " + " | ".join("" if cell is None else str(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def report(phases: Sequence[Phase], streams: Streams, watch: Watch, leaks: list[str], out: Path | None) -> int:
    """Print and write; the exit status."""
    rows = rows_of(phases, streams, watch)
    found: dict[str, Any] = {
        "streams": streams.n,
        "requests": len(streams.records),
        "failed": len(streams.failures),
        "first_failures": streams.failures[:3],
        "different_texts": streams.different,
        "retried": sum(record.retries for record in streams.records),
        "leaks": leaks,
        "wrong": [f"{row['blow']}: {note}" for row in rows for note in row["notes"]],
        "phases": rows,
    }
    shown = table(rows)
    print(shown)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "table.md").write_text(shown)
        (out / "result.json").write_text(json.dumps(found, indent=2) + "\n")
        plot(phases, streams, watch, out / "timeline.png")
    print(json.dumps(found))
    return int(bool(found["failed"] or found["different_texts"] or leaks or found["wrong"]))
