"""The figures of a cell from its turns, and the bars that they must clear."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.reporting.summaries import grouped
from benchmarks.never_slower.cells import AUTO, CPU, NONE, Cell, CellRecord, Turn
from benchmarks.support.statistics import Comparison, Interval, compare, compare_with_best, pooled

BAR_NONE = 0.98  # of no speculation: a cell whose whole interval lies below fails
BAR_FIXED = 0.97  # of the best fixed method: a category whose whole interval lies below fails
HALF_WIDTH, CPU_HALF_WIDTH = 0.01, 0.03  # of an interval that is narrow enough
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

    def over_none_of(self, method: str) -> Comparison:
        """Return no speculation over a method that took part in every turn."""
        return compare(_seconds(self.turns, NONE), _seconds(self.turns, method))

    @property
    def is_sure(self) -> bool:
        """Whether the intervals are narrow, or wholly above their bars."""
        found = [(self.over_none.interval, BAR_NONE)]
        found += [(self.over_fixed.interval, BAR_FIXED)] if self.over_fixed is not None else []
        narrow = CPU_HALF_WIDTH if self.cell.machine == CPU else HALF_WIDTH
        return all(one.half_width <= narrow or one.low > bar for one, bar in found)

    @property
    def differing(self) -> list[str]:
        """Methods whose texts differ from those of no speculation in any turn."""
        return sorted({m for turn in self.turns for m, one in turn.items() if one.digest != turn[NONE].digest})

    @property
    def n_failures(self) -> int:
        """Exceptions of speculators."""
        return sum(turn[AUTO].failures for turn in self.turns)

    @property
    def after_prompts(self) -> float:
        """Ratio to no speculation of the time after the first tokens."""
        taken = {method: _sum(_decoding(turn[method]) for turn in self.turns) for method in (AUTO, NONE)}
        return taken[NONE] / taken[AUTO]

    def mean_seconds(self, method: str) -> float:
        """Of a stream."""
        return statistics.fmean(statistics.fmean(one.seconds) for one in self._records(method))

    def host_us(self, method: str) -> float:
        """Microseconds outside the target, per stream and step, prompts included."""
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
    """Return the fixed methods that took part in every turn."""
    return [method for method in turns[0] if method not in (AUTO, NONE) and all(method in turn for turn in turns)]


def hopeful(turns: Sequence[Turn]) -> list[str]:
    """Return the fixed methods of every turn that may still be the best."""
    taken = {method: _sum(map(_sum, _seconds(turns, method))) for method in fixed_methods(turns)}
    return [method for method, seconds in taken.items() if seconds <= HOPELESS * min(taken.values())]


def categories(summaries: Iterable[Summary]) -> dict[str, Interval]:
    """Return ``auto`` over the best fixed method by machine, kind of prompt and temperature."""

    def name(one: Summary) -> str:
        return f"{one.cell.machine} {one.cell.prompts} T={one.cell.temperature:g}"

    rows = grouped((one for one in summaries if one.over_fixed is not None), name)
    return {name: pooled([one.over_fixed for one in row if one.over_fixed is not None]) for name, row in rows.items()}


def misses(summaries: Sequence[Summary]) -> list[str]:
    """Return what fails, in words. An interval of a single turn misses the noise of the machine, so it never fails."""
    found = [f"{one.cell.label}: different texts by {', '.join(one.differing)}" for one in summaries if one.differing]
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
    """Return a ratio with its interval as text."""
    return f"{interval.ratio:.3f} ({interval.low:.3f}-{interval.high:.3f})"


def medians(summaries: Iterable[Summary]) -> Mapping[str, float]:
    """Return the median gain over no speculation by machine and number of streams."""
    rows = grouped(summaries, lambda one: f"{one.cell.machine} x{one.cell.streams}")
    return {name: statistics.median(one.over_none.ratio for one in row) for name, row in rows.items()}


def _seconds(turns: Sequence[Turn], method: str) -> list[list[float]]:
    return [turn[method].seconds for turn in turns]


def _decoding(record: CellRecord) -> float:
    return _sum(record.seconds) - _sum(record.first_s)


def _sum(values: Iterable[float]) -> float:
    return float(sum(values))
