"""The tables, the picture and the document of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.acceptance.copies import CopyShares
from benchmarks.acceptance.figures import row_figures
from benchmarks.acceptance.plot import draw
from benchmarks.acceptance.runs import RowRecord
from benchmarks.support.reporting import BenchmarkReport, table
from engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a run has measured."""

    settings: Mapping[str, Any]
    records: Mapping[str, Sequence[RowRecord]]  # row -> its records of all kinds of prompts that are complete
    copies: Mapping[str, CopyShares]  # kind of prompt -> where the tokens of its answers stood before


def report(found: Measurement) -> BenchmarkReport:
    """Return the report; raise ConfigError if no kind of prompt is complete."""
    if not found.copies:
        raise ConfigError("no kind of prompt has all its rows yet")
    rows = [row_figures(label, records) for label, records in found.records.items()]
    name = f"{found.settings['rows']}-{found.settings['temperature']}.png"
    every = [record for records in found.records.values() for record in records]
    return BenchmarkReport(
        {
            "settings": found.settings,
            "rows": rows,
            "copies": {kind: shares._asdict() for kind, shares in found.copies.items()},
        },
        "\n\n".join([_methods(rows, [*found.copies]), _copies(found.copies)]),
        any(row["differ"] for row in rows),
        lambda folder: draw(rows, every, folder / name),
    )


def _methods(rows: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> str:
    columns = {"row": "method", "tokens": "tokens per forward", "pre_loop": "pre-loop", "nodes": "nodes per forward"}
    shown = [
        {
            "row": row["row"],
            "tokens": f"{row['tokens_per_forward']:.2f} ({row['low']:.2f}-{row['high']:.2f})",
            "pre_loop": f"{row['pre_loop']:.2f}",
            "nodes": f"{row['nodes_per_forward']:.1f}",
            **{kind: f"{row['pre_loop_by_kind'][kind]:.2f}" for kind in kinds},
        }
        for row in rows
    ]
    return table(columns | {kind: kind for kind in kinds}, shown)


def _copies(copies: Mapping[str, CopyShares]) -> str:
    columns = {"place": "tokens of answers that stood before", **{kind: kind for kind in copies}}
    places = {"prompt": "in the prompt", "answer": "only in the answer", "nowhere": "nowhere"}
    shown = [
        {"place": text, **{kind: f"{getattr(shares, place):.2f}" for kind, shares in copies.items()}}
        for place, text in places.items()
    ]
    return table(columns, shown)
