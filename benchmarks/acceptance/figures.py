"""The figures of a row: tokens per forward, over all texts and by kind, and over those of another row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.bench.figures import steps_before
from app.reporting.summaries import summed
from benchmarks.acceptance.runs import RowRecord
from benchmarks.support.statistics import RESAMPLES, Floats, Interval


@dataclass(frozen=True, slots=True)
class TokenSums:
    """Tokens and forwards of texts, and of resampled texts."""

    tokens: int
    forwards: int
    logs: Floats  # [RESAMPLES], of tokens per forward

    @classmethod
    def of(cls, kinds: Sequence[Sequence[tuple[int, int]]]) -> TokenSums:
        """Return the sums over (tokens, forwards) of every text of every kind.

        Texts are drawn with replacement within their kind. Rows of the same texts get the same draws.
        """
        chance = np.random.default_rng(0)
        sums = np.zeros((2, RESAMPLES))
        for texts in kinds:
            drawn = chance.integers(len(texts), size=(RESAMPLES, len(texts)))
            sums += np.asarray(texts, np.float64).T[:, drawn].sum(2)
        tokens, forwards = (sum(text[i] for texts in kinds for text in texts) for i in (0, 1))
        return cls(tokens, forwards, np.log(np.maximum(sums[0], 1.0) / np.maximum(sums[1], 1.0)))

    @property
    def ratio(self) -> float:
        """Tokens per forward."""
        return self.tokens / max(1, self.forwards)

    @property
    def interval(self) -> Interval:
        return Interval.of(self.ratio, self.logs)

    def over(self, other: TokenSums) -> Interval:
        """Return the ratio of tokens per forward to another row's, for the same texts."""
        return Interval.of(self.ratio / max(other.ratio, 1e-9), self.logs - other.logs)


def all_steps(records: Sequence[RowRecord]) -> TokenSums:
    """Return the sums over all steps."""
    return TokenSums.of([[(sum(steps), len(steps)) for steps in record.step_tokens] for record in records])


def steps_before_loops(records: Sequence[RowRecord]) -> TokenSums:
    """Return the sums over the steps that begin before a text repeats itself."""
    return TokenSums.of(
        [
            [steps_before(cut, steps) for cut, steps in zip(record.loops_at, record.step_tokens, strict=True)]
            for record in records
        ]
    )


def row_figures(label: str, records: Sequence[RowRecord], first: Sequence[RowRecord]) -> dict[str, Any]:
    """Return the figures of a row.

    Args:
        label: of the row.
        records: of the row, one per kind of prompt.
        first: records of the row with which it is compared, of the same kinds.
    """
    every, before = all_steps(records), steps_before_loops(records)
    fewest = min(len(record.step_tokens) for record in records)  # texts of a kind
    return {
        "row": label,
        "texts": sum(len(record.step_tokens) for record in records),
        "looping": sum(cut is not None for record in records for cut in record.loops_at),
        "differ": sum(record.differ for record in records),
        "failures": sum(record.failures for record in records),
        "tokens_per_forward": _rounded(every.interval, fewest),
        "pre_loop": round(before.ratio, 3),
        "pre_loop_over_first": _rounded(before.over(steps_before_loops(first)), fewest),
        "pre_loop_by_kind": {record.kind: round(steps_before_loops([record]).ratio, 3) for record in records},
        "drafted_per_forward": round(sum(record.drafted for record in records) / max(1, every.forwards), 2),
        "by_source": summed(record.by_source for record in records),
    }


def _rounded(interval: Interval, n_texts: int) -> Mapping[str, float | None]:
    """Return ratio and interval; a kind with one text has no interval."""
    ratio, low, high = (round(each, 3) for each in (interval.ratio, interval.low, interval.high))
    return {"ratio": ratio, "low": low if n_texts > 1 else None, "high": high if n_texts > 1 else None}
