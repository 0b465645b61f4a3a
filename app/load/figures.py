"""The figures of a run, from its records alone; reads no clock."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from app.load.failures import TOO_MANY
from app.load.identity import Identity, identity
from app.load.records import STREAM_BREAKS, Record
from app.load.slo import Slo


class Spread(msgspec.Struct, frozen=True):
    """How values are spread; percentiles are values that occurred (nearest rank), never between two."""

    n: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Figures(msgspec.Struct, frozen=True):
    """What a run came to. Times in seconds; None: there was nothing to tell it from."""

    requests: int
    ok: int
    failed: int
    seconds: float  # first intended arrival to last end
    ttft: Spread | None
    tpot: Spread | None
    inter_chunk: Spread | None
    tokens_per_chunk: Spread | None
    e2e: Spread | None
    lateness: Spread | None  # of the client: sent after it should have been
    requests_per_s: float
    output_tokens: int | None
    output_tokens_per_s: float | None
    prompt_tokens: int | None
    slo: str
    goodput: float | None  # requests per second that met the SLO
    slo_met: int | None
    errors: dict[str, int]  # requests failed for good, by kind
    messages: dict[str, str]  # the first message of each kind of failed attempt
    failed_attempts: dict[str, int]  # including those that a retry made good
    retry_after: Spread | None  # as 429s said
    retries: int
    recovery: Spread | None  # of broken streams
    unrecovered: int  # broken streams that never went on
    diverged: int  # retries that did not repeat the text received before
    identity: Identity
    speculation: dict[str, Any] | None

    @property
    def is_good(self) -> bool:
        """Whether every request was answered, and the same answers were the same."""
        return not (self.failed or self.diverged or self.identity.differing)


def spread(values: Iterable[float]) -> Spread | None:
    """How ``values`` are spread; None without any."""
    ranked = sorted(values)
    if not ranked:
        return None
    p50, p90, p99 = (percentile(ranked, p) for p in (50, 90, 99))
    mean = min(max(math.fsum(ranked) / len(ranked), ranked[0]), ranked[-1])  # rounding must not leave the range
    return Spread(len(ranked), mean, p50, p90, p99, ranked[-1])


def percentile(ranked: Sequence[float], p: int) -> float:
    """The smallest value that at least ``p`` percent of the ascending values do not exceed."""
    return ranked[max(0, -(-len(ranked) * p // 100) - 1)]


def figures(records: Sequence[Record], slo: Slo | None = None, is_greedy: bool = False) -> Figures:
    """Everything about ended requests; latencies are those of whole answers."""
    good = [record for record in records if record.ok]
    breaks = [found for record in records for found in record.breaks]
    broken = [found for found in breaks if found.kind in STREAM_BREAKS]
    seconds = max((r.ended for r in records), default=0.0) - min((r.intended for r in records), default=0.0)
    tokens, met = _sum(r.completion_tokens for r in good), _met(good, slo)
    return Figures(
        requests=len(records),
        ok=len(good),
        failed=len(records) - len(good),
        seconds=seconds,
        ttft=_spread(r.ttft for r in good),
        tpot=_spread(r.tpot for r in good),
        inter_chunk=spread(gap for r in good for gap in r.gaps),
        tokens_per_chunk=_spread(r.tokens_per_chunk for r in good),
        e2e=spread(r.e2e for r in good),
        lateness=spread(r.lateness for r in records),
        requests_per_s=_rate(len(good), seconds) or 0.0,
        output_tokens=tokens,
        output_tokens_per_s=_rate(tokens, seconds),
        prompt_tokens=_sum(r.prompt_tokens for r in good),
        slo="" if slo is None else slo.text,
        goodput=_rate(met, seconds),
        slo_met=met,
        errors=dict(Counter(r.outcome for r in records if not r.ok)),
        messages={found.kind: found.message for found in reversed(breaks)},
        failed_attempts=dict(Counter(found.kind for found in breaks)),
        retry_after=_spread(found.retry_after for found in breaks if found.kind == TOO_MANY),
        retries=sum(r.retries for r in records),
        recovery=_spread(found.recovered for found in broken),
        unrecovered=sum(found.recovered is None for found in broken),
        diverged=sum(r.diverged for r in records),
        identity=identity(records, is_greedy),
        speculation=speculation([r.speculation for r in good if r.speculation]),
    )


def speculation(said: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Sums over what servers said of their answers, and the means that follow; None if they said nothing."""
    if not said:
        return None
    steps, drafted, accepted = (
        sum(int(one.get(name) or 0) for one in said)
        for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    )
    return {
        "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "num_spec_steps": steps,
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": accepted,
        "by_source": _by_source(said),
    }


def _by_source(said: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    sums: dict[str, Counter[str]] = {}
    for one in said:
        for name, counts in (one.get("by_source") or {}).items():
            sums.setdefault(name, Counter()).update(counts)
    return {name: dict(counts) for name, counts in sums.items()}


def _met(good: Sequence[Record], slo: Slo | None) -> int | None:
    """How many met the SLO; None without one, and when that cannot be told of every answer."""
    verdicts = [] if slo is None else [slo.met(record) for record in good]
    return None if slo is None or None in verdicts else sum(map(bool, verdicts))


def _sum(values: Iterable[int | None]) -> int | None:
    """None unless every value is known."""
    known = list(values)
    return None if not known or None in known else sum(value or 0 for value in known)


def _rate(count: int | None, seconds: float) -> float | None:
    return None if count is None or seconds <= 0 else count / seconds


def _spread(values: Iterable[float | None]) -> Spread | None:
    return spread(value for value in values if value is not None)
