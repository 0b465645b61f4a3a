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
    first = next(iter(found.records.values()))
    rows = [row_figures(label, records, first) for label, records in found.records.items()]
    every = [record for records in found.records.values() for record in records]
    bad = [f"{row['row']}: {row['differ']} texts differ, {row['failures']} failures" for row in rows if _is_bad(row)]
    return BenchmarkReport(
        {
            "settings": found.settings,
            "rows": rows,
            "copies": {kind: shares._asdict() for kind, shares in found.copies.items()},
        },
        "\n\n".join([_methods(rows, [*found.copies]), _copies(found.copies), *bad]),
        bool(bad),
        lambda folder: draw(rows, every, folder / "acceptance.png"),
    )


def _is_bad(row: Mapping[str, Any]) -> bool:
    return bool(row["differ"] or row["failures"])


def _methods(rows: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> str:
    columns = {
        "row": "method",
        "tokens": "tokens per forward",
        "pre_loop": "pre-loop",
        "over": "over the first row",
        "drafted": "drafted nodes",
    }
    shown = [
        {
            "row": row["row"],
            "tokens": _interval(row["tokens_per_forward"]),
            "pre_loop": f"{row['pre_loop']:.2f}",
            "over": _interval(row["pre_loop_over_first"]),
            "drafted": f"{row['drafted_per_forward']:.1f}",
            **{kind: f"{row['pre_loop_by_kind'][kind]:.2f}" for kind in kinds},
        }
        for row in rows
    ]
    return table(columns | {kind: kind for kind in kinds}, shown)


def _interval(found: Mapping[str, float | None]) -> str:
    ratio, low, high = found["ratio"], found["low"], found["high"]
    return f"{ratio:.2f}" if low is None or high is None else f"{ratio:.2f} ({low:.2f}-{high:.2f})"


def _copies(copies: Mapping[str, CopyShares]) -> str:
    columns = {"place": "answer tokens by earlier occurrence", **{kind: kind for kind in copies}}
    places = {"prompt": "in the prompt", "answer": "only in the answer", "nowhere": "nowhere"}
    shown = [
        {"place": text, **{kind: f"{getattr(shares, place):.2f}" for kind, shares in copies.items()}}
        for place, text in places.items()
    ]
    return table(columns, shown)
