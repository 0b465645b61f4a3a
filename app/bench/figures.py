"""Figures of records: acceptance, speed and identity of each method, over all questions and by category.

Greedy text of a small model often loops, and a loop flatters every method that drafts from n-grams: acceptance is
therefore also given for the steps before an output begins to loop.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from app.bench.records import BenchSetting, Key, TurnRecord
from app.reporting.summaries import Quartiles, grouped, loop_start, quartiles, ratio, summed
from engine.scheduling.drafting import AUTOREGRESSIVE

CURVE_STEPS = 3  # steps of a size that the curve of step times needs


class MethodFigures(msgspec.Struct, frozen=True):
    """The figures of a method on some turns, by their names in the document; None: the records cannot give one."""

    outputs: int  # turns over all repeats
    tokens: int  # committed by decode steps: without the prefill's
    target_forwards: int  # decode forwards
    tokens_per_forward: float | None  # tau
    tokens_per_forward_quartiles: Quartiles | None  # over turns
    pre_loop_tokens_per_forward: float | None  # tau of the steps that begin before an output loops
    looping: float  # share of outputs that loop
    identical: int  # outputs equal to autoregressive decoding's
    compared: int  # outputs that could be compared
    speedup_quartiles: Quartiles | None  # over turns, each against autoregressive decoding in the same repeat
    speedup_total: float | None  # ratio of the summed times
    speedup_repeats: list[float]  # the same, one per repeat
    mic_tp: float | None  # tokens per second: all tokens over all time
    mac_tp: float | None  # tokens per second: mean over decode steps
    outside_target: float | None  # share of the decode time outside the target's forwards: mostly drafting
    by_source: dict[str, dict[str, int]]
    drafting_failures: int  # exceptions of the method, which drafted nothing after them

    @property
    def is_identical(self) -> bool | None:
        """Whether every output equals autoregressive decoding's; None if none could be compared."""
        return self.identical == self.compared if self.compared else None

    @property
    def speedup(self) -> float | None:
        return None if self.speedup_quartiles is None else self.speedup_quartiles.median


@dataclass(frozen=True, slots=True)
class MethodRow:
    """A method under one setting."""

    method: str
    total: MethodFigures
    by_category: dict[str, MethodFigures]


def compare(records: Iterable[TurnRecord]) -> dict[BenchSetting, list[MethodRow]]:
    """Figures of every method under every setting; settings, methods and categories as they first occur."""
    records = list(records)
    reference = {record.key: record for record in records if record.is_reference}
    return {
        setting: [_row(method, mine, reference) for method, mine in grouped(some, lambda r: r.method).items()]
        for setting, some in grouped(records, lambda r: r.setting).items()
    }


def figures(records: Sequence[TurnRecord], reference: Mapping[Key, TurnRecord]) -> MethodFigures:
    """Figures of one method's records (at least one) under one setting, against autoregressive decoding's."""
    cuts = [loop_start(record.token_ids) for record in records]
    before = [steps_before(cut, record.step_tokens) for cut, record in zip(cuts, records, strict=True)]
    tokens, forwards = sum(sum(r.step_tokens) for r in records), sum(len(r.step_tokens) for r in records)
    per_turn = [sum(r.step_tokens) / len(r.step_tokens) for r in records if r.step_tokens]
    others = [(record, reference.get(record.key._replace(method=AUTOREGRESSIVE))) for record in records]
    pairs = [(record, other) for record, other in others if other is not None]
    rates = [n / s for r in records for n, s in zip(r.step_tokens, r.step_seconds, strict=False)]
    inside = ratio(sum(sum(r.target_seconds) for r in records), sum(sum(r.step_seconds) for r in records))
    timed = [(record, other) for record, other in pairs if record.seconds and other.seconds]
    repeats = grouped(timed, lambda pair: pair[0].repeat).values()
    return MethodFigures(
        outputs=len(records),
        tokens=tokens,
        target_forwards=forwards,
        tokens_per_forward=ratio(tokens, forwards),
        tokens_per_forward_quartiles=quartiles(per_turn),
        pre_loop_tokens_per_forward=ratio(sum(t for t, _ in before), sum(f for _, f in before)),
        looping=sum(cut is not None for cut in cuts) / len(cuts),
        identical=sum(_same(record, other, reference) for record, other in pairs),
        compared=len(pairs),
        speedup_quartiles=quartiles([other.seconds / record.seconds for record, other in timed]),
        speedup_total=_speedup(timed),
        speedup_repeats=[s for some in repeats if (s := _speedup(some)) is not None],
        mic_tp=ratio(sum(len(r.token_ids) for r in records if r.seconds), sum(r.seconds for r in records)),
        mac_tp=statistics.fmean(rates) if rates else None,
        outside_target=None if inside is None else 1 - inside,
        by_source=summed(record.by_source for record in records),
        drafting_failures=sum(record.failures for record in records),
    )


def step_curve(records: Iterable[TurnRecord]) -> dict[int, Quartiles]:
    """Seconds that the target takes for a decode step, by the nodes in it; sizes of ``CURVE_STEPS`` steps or more.

    In a batch, nodes are the rows beyond one per sequence, prompt tokens of sequences in prefill included.
    """
    seconds: dict[int, list[float]] = {}
    for record in records:
        for nodes, taken in zip(record.step_nodes, record.target_seconds, strict=False):
            seconds.setdefault(nodes, []).append(taken)
    spreads = ((nodes, quartiles(taken)) for nodes, taken in sorted(seconds.items()) if len(taken) >= CURVE_STEPS)
    return {nodes: spread for nodes, spread in spreads if spread is not None}


def steps_before(cut: int | None, step_tokens: Sequence[int]) -> tuple[int, int]:
    """(tokens, forwards) of the decode steps that begin before ``cut`` (an index into the output; None: all steps).

    The first output token comes from the prefill and does not count.
    """
    tokens, forwards = 0, 0
    for n in step_tokens:
        if cut is not None and 1 + tokens >= cut:
            break
        tokens += n
        forwards += 1
    return tokens, forwards


def _row(method: str, records: Sequence[TurnRecord], reference: Mapping[Key, TurnRecord]) -> MethodRow:
    by_category = {name: figures(some, reference) for name, some in grouped(records, lambda r: r.category).items()}
    return MethodRow(method, figures(records, reference), by_category)


def _same(record: TurnRecord, other: TurnRecord, reference: Mapping[Key, TurnRecord]) -> bool:
    """Whether an output equals autoregressive decoding's of the same repeat.

    A greedy output of autoregressive decoding itself is compared with that of its first repeat.
    """
    if record.is_reference:
        other = reference.get(record.key._replace(repeat=0) if record.temperature == 0 else record.key, record)
    return record.token_ids == other.token_ids


def _speedup(timed: Sequence[tuple[TurnRecord, TurnRecord]]) -> float | None:
    return ratio(sum(other.seconds for _, other in timed), sum(record.seconds for record, _ in timed))
