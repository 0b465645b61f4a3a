"""Figures of records: acceptance, speed and identity of each method, over all questions and by category."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from app.bench.loops import loop_start, steps_before
from app.bench.records import Record, Setting

Item = TypeVar("Item")
Group = TypeVar("Group")
CURVE_STEPS = 3
Place = tuple[Setting, int, int, int]  # setting, repeat, question, turn: where methods meet


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of something."""

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What a method did on some turns. What the records cannot tell is None."""

    turns: int  # over all repeats
    tokens: int  # committed by decode steps: without the prefill's
    forwards: int  # decode forwards
    tokens_per_forward: float | None  # tau
    tokens_per_forward_spread: Spread | None  # over turns
    pre_loop: float | None  # tau of the steps that begin before an output loops
    looping: float  # share of outputs that loop
    identical: int  # outputs equal to autoregressive decoding's
    compared: int  # outputs that could be compared
    speedup: Spread | None = None  # over turns, each against autoregressive decoding in the same repeat
    speedup_total: float | None = None  # ratio of the summed times
    speedup_repeats: list[float] = field(default_factory=list)  # the same, one per repeat
    mic_tp: float | None = None  # tokens per second: all tokens over all time
    mac_tp: float | None = None  # tokens per second: mean over decode steps
    outside_target: float | None = None  # share of the decode time that is not the target's: mostly drafting
    by_source: dict[str, dict[str, int]] = field(default_factory=dict)
    failures: int = 0  # exceptions of the method: its figures are not what it can do

    @property
    def is_identical(self) -> bool | None:
        """Whether every output equals autoregressive decoding's; None if none could be compared."""
        return self.identical == self.compared if self.compared else None


@dataclass(frozen=True, slots=True)
class Row:
    """A method under one setting."""

    method: str
    total: Figures
    by_category: dict[str, Figures]


def report(records: Iterable[Record]) -> dict[Setting, list[Row]]:
    """Figures of every method under every setting; settings, methods and categories as they first occur."""
    records = list(records)
    reference = {place(record): record for record in records if record.is_reference}
    return {
        setting: [_row(method, mine, reference) for method, mine in _grouped(some, lambda r: r.method).items()]
        for setting, some in _grouped(records, lambda r: r.setting).items()
    }


def place(record: Record) -> Place:
    """Where a record meets those of other methods."""
    return (record.setting, record.repeat, record.index, record.turn)


def figures(records: Sequence[Record], reference: Mapping[Place, Record]) -> Figures:
    """Figures of one method's records under one setting.

    Args:
        records: at least one.
        reference: autoregressive decoding's record at each place.
    """
    cuts = [loop_start(record.token_ids) for record in records]
    before = [steps_before(cut, record.step_tokens) for cut, record in zip(cuts, records, strict=True)]
    tokens, forwards = sum(sum(r.step_tokens) for r in records), sum(len(r.step_tokens) for r in records)
    per_turn = [sum(r.step_tokens) / len(r.step_tokens) for r in records if r.step_tokens]
    pairs = [(record, reference[place(record)]) for record in records if place(record) in reference]
    return Figures(
        turns=len(records),
        tokens=tokens,
        forwards=forwards,
        tokens_per_forward=_ratio(tokens, forwards),
        tokens_per_forward_spread=spread(per_turn),
        pre_loop=_ratio(sum(t for t, _ in before), sum(f for _, f in before)),
        looping=sum(cut is not None for cut in cuts) / len(cuts),
        identical=sum(_same(record, other, reference) for record, other in pairs),
        compared=len(pairs),
        speedup=spread([other.seconds / record.seconds for record, other in _timed(pairs)]),
        speedup_total=_speedup(pairs),
        speedup_repeats=[s for some in _grouped(pairs, _repeat).values() if (s := _speedup(some)) is not None],
        mic_tp=_ratio(sum(len(r.token_ids) for r in records if r.seconds), sum(r.seconds for r in records)),
        mac_tp=_mac_tp(records),
        outside_target=_outside(records),
        by_source=_sources(records),
        failures=sum(record.failures for record in records),
    )


def step_curve(records: Iterable[Record]) -> dict[int, Spread]:
    """Seconds the target takes for a decode step, by the nodes it scores; counts seen ``CURVE_STEPS`` times or more.

    In batches, nodes are the rows beyond one per sequence, prompt tokens of others included.
    """
    seconds: dict[int, list[float]] = {}
    for record in records:
        for nodes, taken in zip(record.step_nodes, record.target_seconds, strict=False):
            seconds.setdefault(nodes, []).append(taken)
    curve = {nodes: spread(taken) for nodes, taken in sorted(seconds.items()) if len(taken) >= CURVE_STEPS}
    return {nodes: found for nodes, found in curve.items() if found is not None}


def spread(values: Sequence[float]) -> Spread | None:
    """Median and quartiles (inclusive, linear); None of nothing."""
    if len(values) < 2:
        return Spread(values[0], values[0], values[0]) if values else None
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def _row(method: str, records: Sequence[Record], reference: Mapping[Place, Record]) -> Row:
    categories = _grouped(records, lambda r: r.category)
    return Row(
        method, figures(records, reference), {name: figures(some, reference) for name, some in categories.items()}
    )


def _same(record: Record, other: Record, reference: Mapping[Place, Record]) -> bool:
    """Whether a text is autoregressive decoding's of the same repeat; greedily, its own is that of its first repeat."""
    if record.is_reference:
        first = (record.setting, 0 if record.temperature == 0 else record.repeat, record.index, record.turn)
        other = reference.get(first, record)
    return record.token_ids == other.token_ids


def _timed(pairs: Iterable[tuple[Record, Record]]) -> list[tuple[Record, Record]]:
    return [pair for pair in pairs if pair[0].seconds and pair[1].seconds]


def _repeat(pair: tuple[Record, Record]) -> int:
    return pair[0].repeat


def _speedup(pairs: Iterable[tuple[Record, Record]]) -> float | None:
    timed = _timed(pairs)
    return _ratio(sum(other.seconds for _, other in timed), sum(record.seconds for record, _ in timed))


def _mac_tp(records: Iterable[Record]) -> float | None:
    rates = [n / s for r in records for n, s in zip(r.step_tokens, r.step_seconds, strict=False)]
    return statistics.fmean(rates) if rates else None


def _outside(records: Sequence[Record]) -> float | None:
    inside = _ratio(sum(sum(r.target_seconds) for r in records), sum(sum(r.step_seconds) for r in records))
    return None if inside is None else 1 - inside


def _sources(records: Iterable[Record]) -> dict[str, dict[str, int]]:
    sums: dict[str, dict[str, int]] = {}
    for record in records:
        for name, counts in record.by_source.items():
            mine = sums.setdefault(name, {})
            for what, n in counts.items():
                mine[what] = mine.get(what, 0) + n
    return sums


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None


def _grouped(items: Iterable[Item], key: Callable[[Item], Group]) -> dict[Group, list[Item]]:
    groups: dict[Group, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
