"""Figures that several reports need; None stands for a figure that the values cannot give."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

NGRAM, TIMES = 8, 3  # a text loops when one n-gram of this length occurs so many times

Item = TypeVar("Item")
Group = TypeVar("Group")


class Quartiles(msgspec.Struct, frozen=True):
    """Median and quartiles of values (inclusive method, interpolated)."""

    low: float
    median: float
    high: float


class Percentiles(msgspec.Struct, frozen=True):
    """Mean and percentiles of ``n`` values; each percentile is a value that occurred (nearest rank)."""

    n: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


def quartiles(values: Sequence[float]) -> Quartiles | None:
    """Median and quartiles; None without values."""
    if len(values) < 2:
        return Quartiles(values[0], values[0], values[0]) if values else None
    return Quartiles(*statistics.quantiles(values, n=4, method="inclusive"))


def percentiles(values: Iterable[float | None]) -> Percentiles | None:
    """Mean and percentiles of the values that are known; None without any."""
    ranked = sorted(value for value in values if value is not None)
    if not ranked:
        return None
    p50, p90, p99 = (ranked[-(-len(ranked) * p // 100) - 1] for p in (50, 90, 99))
    mean = min(max(statistics.fmean(ranked), ranked[0]), ranked[-1])  # rounding must not leave the range
    return Percentiles(len(ranked), mean, p50, p90, p99, ranked[-1])


def ratio(above: float | None, below: float) -> float | None:
    """``above / below``; None if ``above`` is unknown or ``below`` is not positive."""
    return None if above is None or below <= 0 else above / below


def rounded(value: Any, digits: int = 4) -> Any:
    """JSON values with all floats in them rounded."""
    if isinstance(value, dict):
        return {name: rounded(one, digits) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one, digits) for one in value]
    return round(value, digits) if isinstance(value, float) else value


def summed(counts: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Sums of counters that have two levels of names, such as source and kind of token."""
    sums: dict[str, Counter[str]] = {}
    for some in counts:
        for name, values in some.items():
            sums.setdefault(name, Counter()).update(values)
    return {name: dict(values) for name, values in sums.items()}


def grouped(items: Iterable[Item], key: Callable[[Item], Group]) -> dict[Group, list[Item]]:
    """Items by their key, keys in the order in which they first occur."""
    groups: dict[Group, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def loop_start(tokens: Sequence[int]) -> int | None:
    """Position of the second occurrence of the first n-gram that occurs ``TIMES`` times; None without a loop.

    Small models repeat themselves so. Such text flatters every method that drafts from n-grams, and teaches little.
    """
    seen: dict[tuple[int, ...], list[int]] = {}
    for i in range(len(tokens) - NGRAM + 1):
        positions = seen.setdefault(tuple(tokens[i : i + NGRAM]), [])
        positions.append(i)
        if len(positions) == TIMES:
            return positions[1]
    return None
