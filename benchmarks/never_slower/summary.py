"""What the turns of a cell come to, and the bars they are held against."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.reporting.summaries import grouped
from benchmarks.never_slower.cells import AUTO, NONE, Cell, CellRecord
from benchmarks.never_slower.record_file import Turn
from benchmarks.never_slower.statistics import Comparison, Interval, compare, compare_with_best, pooled

BAR_NONE = 0.98  # of no speculation: a cell whose whole interval lies below fails
BAR_FIXED = 0.97  # of the best fixed method: a category whose whole interval lies below fails
HALF_WIDTH = 0.03  # of an interval that is narrow enough
HOPELESS = 1.15  # times the seconds of the best fixed method: another that takes longer is not run again


@dataclass(frozen=True, slots=True)
class Summary:
    """A cell's figures; above 1, ``auto`` is faster."""

    cell: Cell
    turns: Sequence[Turn]
    over_none: Comparison
    over_fixed: Comparison | None  # None: no fixed method was run
    best: list[str]  # fixed methods, one of each half

    @classmethod
    def of(cls, cell: Cell, turns: Sequence[Turn]) -> Summary:
        """From at least one turn."""
        ours = _seconds(turns, AUTO)
        candidates = {method: _seconds(turns, method) for method in fixed_methods(turns)}
        best, over_fixed = compare_with_best(candidates, ours) if candidates else ([], None)
        return cls(cell, turns, compare(_seconds(turns, NONE), ours), over_fixed, best)

    @property
    def is_sure(self) -> bool:
        """Whether more turns would say nothing new: intervals are narrow, or well above what is asked."""
        found = [(self.over_none.interval, BAR_NONE)]
        found += [(self.over_fixed.interval, BAR_FIXED)] if self.over_fixed is not None else []
        return all(one.half_width <= HALF_WIDTH or one.low > bar for one, bar in found)

    @property
    def differing(self) -> list[str]:
        """Methods that wrote another text than no speculation, in any turn."""
        return sorted({m for turn in self.turns for m, one in turn.items() if one.digest != turn[NONE].digest})

    @property
    def n_failures(self) -> int:
        """Exceptions of speculators."""
        return sum(turn[AUTO].failures for turn in self.turns)

    @property
    def after_prompts(self) -> float:
        """The ratio to no speculation of the time behind the first tokens."""
        taken = {method: _sum(_decoding(turn[method]) for turn in self.turns) for method in (AUTO, NONE)}
        return taken[NONE] / taken[AUTO]

    def mean_seconds(self, method: str) -> float:
        """Of a stream."""
        return statistics.fmean(statistics.fmean(one.seconds) for one in self._records(method))

    def host_us(self, method: str) -> float:
        """Microseconds beside the target, per stream and step, prompts included."""
        records = self._records(method)
        return sum(one.host_s for one in records) / max(1, sum(one.trees for one in records)) * 1e6

    def nodes(self, method: str) -> float:
        """Of the mean tree, empty ones included."""
        records = self._records(method)
        return sum(one.nodes for one in records) / max(1, sum(one.trees for one in records))

    def per_forward(self, method: str) -> float:
        """Tokens of a method's decode steps and stream."""
        records = self._records(method)
        streams = sum(len(one.seconds) for one in records)
        return (sum(one.tokens for one in records) - streams) / max(1, sum(one.forwards for one in records))

    def _records(self, method: str) -> list[CellRecord]:
        return [turn[method] for turn in self.turns]


def fixed_methods(turns: Sequence[Turn]) -> list[str]:
    """Fixed methods that took part in every turn."""
    return [method for method in turns[0] if method not in (AUTO, NONE) and all(method in turn for turn in turns)]


def hopeful(turns: Sequence[Turn]) -> list[str]:
    """Fixed methods of every turn that may still be the best."""
    taken = {method: _sum(map(_sum, _seconds(turns, method))) for method in fixed_methods(turns)}
    return [method for method, seconds in taken.items() if seconds <= HOPELESS * min(taken.values())]


def categories(summaries: Iterable[Summary]) -> dict[str, Interval]:
    """Machine, kind of prompt and temperature -> ``auto`` over the best fixed method, over all numbers of streams."""
    rows = grouped(
        (one for one in summaries if one.over_fixed is not None),
        lambda one: f"{one.cell.machine} {one.cell.prompts} T={one.cell.temperature:g}",
    )
    return {name: pooled([one.over_fixed for one in row if one.over_fixed is not None]) for name, row in rows.items()}


def misses(summaries: Sequence[Summary]) -> list[str]:
    """What fails, in words. A single turn says nothing of what the machine did to it: it is shown, and not judged."""
    found = [f"{one.cell.label}: other texts by {', '.join(one.differing)}" for one in summaries if one.differing]
    found += [f"{one.cell.label}: speculators failed {one.n_failures} times" for one in summaries if one.n_failures]
    repeated = [one for one in summaries if len(one.turns) > 1]
    for one in repeated:
        interval = one.over_none.interval
        if interval.high < BAR_NONE:
            found.append(f"{one.cell.label}: {shown(interval)} of no speculation")
    for name, interval in categories(repeated).items():
        if interval.high < BAR_FIXED:
            found.append(f"{name}: {shown(interval)} of the best fixed method")
    return found


def shown(interval: Interval) -> str:
    """A ratio with its interval, for people."""
    return f"{interval.ratio:.3f} ({interval.low:.3f}-{interval.high:.3f})"


def medians(summaries: Iterable[Summary]) -> Mapping[str, float]:
    """Machine and number of streams -> the median gain over no speculation of its cells."""
    rows = grouped(summaries, lambda one: f"{one.cell.machine} x{one.cell.streams}")
    return {name: statistics.median(one.over_none.ratio for one in row) for name, row in rows.items()}


def _seconds(turns: Sequence[Turn], method: str) -> list[list[float]]:
    return [turn[method].seconds for turn in turns]


def _decoding(record: CellRecord) -> float:
    return _sum(record.seconds) - _sum(record.first_s)


def _sum(values: Iterable[float]) -> float:
    return float(sum(values))
