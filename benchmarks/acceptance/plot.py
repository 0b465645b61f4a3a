"""The picture of a run: tokens per forward of every row, and along the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from app.reporting.plotting import LEGEND, colour, grid, label, save
from benchmarks.acceptance.runs import RowRecord

PIECE = 16  # tokens of a text that make a point
MOST_LINES = 8


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
