"""The figures of a row: tokens per forward, over all texts and by kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.bench.figures import steps_before
from app.reporting.summaries import summed
from benchmarks.acceptance.runs import RowRecord
from benchmarks.support.statistics import compare


def row_figures(label: str, records: Sequence[RowRecord]) -> dict[str, Any]:
    """Return the figures of a row; each of its records has the texts of one kind."""
    texts = [steps for record in records for steps in record.step_tokens if steps]
    ratio = compare([[sum(steps) for steps in texts]], [[len(steps) for steps in texts]]).interval
    before = {record.kind: _before_loops(record) for record in records}
    n_texts = sum(len(record.step_tokens) for record in records)
    return {
        "row": label,
        "texts": n_texts,
        "looping": sum(cut is not None for record in records for cut in record.loops_at),
        "differ": sum(record.differ for record in records),
        "failures": sum(record.failures for record in records),
        "tokens_per_forward": round(ratio.ratio, 3),
        "low": round(ratio.low, 3),
        "high": round(ratio.high, 3),
        "pre_loop": round(_ratio(*map(sum, zip(*before.values(), strict=True))), 3),
        "pre_loop_by_kind": {kind: round(_ratio(*counts), 3) for kind, counts in before.items()},
        "nodes_per_forward": round(sum(record.drafted for record in records) / max(1, sum(map(len, texts))), 2),
        "by_source": summed(record.by_source for record in records),
    }


def _before_loops(record: RowRecord) -> tuple[int, int]:
    """Return tokens and forwards of the steps that begin before a text repeats itself."""
    counts = [steps_before(cut, steps) for cut, steps in zip(record.loops_at, record.step_tokens, strict=True)]
    return sum(tokens for tokens, _ in counts), sum(forwards for _, forwards in counts)


def _ratio(tokens: int, forwards: int) -> float:
    return tokens / max(1, forwards)
