"""The tables, the picture and the document of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from app.reporting.plotting import LEGEND, colour, grid, label, save
from benchmarks.acceptance.figures import row_figures
from benchmarks.acceptance.runs import RowRecord
from benchmarks.support.reporting import BenchmarkReport, table
from engine.errors import ConfigError

PIECE = 16  # tokens of a text that make a point
MOST_LINES = 8  # of the picture


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a run has measured."""

    settings: Mapping[str, Any]
    records: Mapping[str, Sequence[RowRecord]]  # row -> its records of all kinds of prompts that are complete
    kinds: Sequence[str]  # of prompts that are complete


def report(found: Measurement) -> BenchmarkReport:
    """Return the report; raise ConfigError if no kind of prompt is complete."""
    if not found.kinds:
        raise ConfigError("no kind of prompt has all its rows yet")
    first = next(iter(found.records.values()))
    rows = [row_figures(label, records, first) for label, records in found.records.items()]
    every = [record for records in found.records.values() for record in records]
    bad = [f"{row['row']}: {row['differ']} texts differ, {row['failures']} failures" for row in rows if _is_bad(row)]
    return BenchmarkReport(
        {"settings": found.settings, "rows": rows},
        "\n\n".join([_methods(rows, found.kinds), *bad]),
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


def along_text(records: Sequence[RowRecord]) -> list[float]:
    """Return tokens per forward of the steps that begin in each ``PIECE`` tokens of the texts, as far as half reach.

    A text counts until it begins to repeat itself.
    """
    texts = [pair for record in records for pair in zip(record.step_tokens, record.loops_at, strict=True)]
    ends = sorted(1 + sum(steps) for steps, _ in texts)
    pieces = [[0, 0] for _ in range(max(1, ends[len(ends) // 2] // PIECE))]
    for steps, cut in texts:
        for start, n in zip(accumulate(steps, initial=1), steps, strict=False):  # a prefill writes the first token
            if start // PIECE < len(pieces) and (cut is None or start < cut):
                pieces[start // PIECE][0] += n
                pieces[start // PIECE][1] += 1
    return [tokens / max(1, forwards) for tokens, forwards in pieces]


def draw(rows: Sequence[Mapping[str, Any]], records: Sequence[RowRecord], path: Path) -> None:
    """Write the PNG: all rows with their intervals, and the best of them along the text.

    Args:
        rows: figures of every row, by ``row_figures``.
        records: of all rows.
    """
    figure, (left, right) = grid(1, 2, (11, max(3.0, 0.24 * len(rows) + 1)))
    ranked = sorted(rows, key=lambda row: row["tokens_per_forward"]["ratio"])
    for place, row in enumerate(ranked):
        found = row["tokens_per_forward"]
        mean = found["ratio"]
        low, high = (mean if found[name] is None else found[name] for name in ("low", "high"))
        left.barh(place, mean, color="0.75", xerr=[[mean - low], [high - mean]], ecolor="0.35")
    left.set_yticks(range(len(ranked)), [row["row"] for row in ranked])
    label(left, "tokens per forward, 95 % interval")
    for i, row in enumerate(reversed(ranked[-MOST_LINES:])):
        means = along_text([record for record in records if record.row == row["row"]])
        right.plot([(j + 0.5) * PIECE for j in range(len(means))], means, color=colour(i), label=row["row"])
    right.set_ylim(bottom=0)
    right.grid(alpha=0.3)
    right.legend(fontsize=LEGEND)
    label(right, "tokens of the answer so far", "tokens per forward, pre-loop")
    save(figure, path)
