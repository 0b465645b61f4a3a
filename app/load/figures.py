"""The figures of a run, from its records alone, and whether answers to the same question are identical."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.load.records import STREAM_BREAKS, RequestRecord
from app.load.settings import Slo
from app.load.stream import TOO_MANY
from app.reporting.summaries import Percentiles, grouped, percentiles, ratio, summed

SHOWN_CHARS = 60  # of answers that differ


@dataclass(frozen=True)
class Identity:
    """The result of comparing answers to the same question."""

    compared: int = 0  # answers to questions that were answered more than once
    groups: int = 0  # questions that were answered more than once
    differing: list[str] = field(default_factory=list)  # one description per question whose answers differ


class LoadFigures(msgspec.Struct, frozen=True):
    """Figures of a run, times in seconds; a figure that the records cannot give is None."""

    requests: int
    ok: int
    failed: int
    seconds: float  # first intended arrival to last end
    ttft: Percentiles | None
    tpot: Percentiles | None
    inter_chunk: Percentiles | None
    tokens_per_chunk: Percentiles | None
    e2e: Percentiles | None
    lateness: Percentiles | None  # of the client: from the intended arrival to sending
    requests_per_s: float
    output_tokens: int | None
    output_tokens_per_s: float | None
    prompt_tokens: int | None
    slo: str
    goodput: float | None  # requests per second that met the SLO
    slo_met: int | None
    errors: dict[str, int]  # requests failed for good, by kind
    messages: dict[str, str]  # the first message of each kind of failed attempt
    failed_attempts: dict[str, int]  # including those before a successful retry
    retry_after: Percentiles | None  # of 429s
    retries: int
    recovery: Percentiles | None  # of broken streams
    unrecovered: int  # broken streams that no retry continued
    diverged: int  # requests whose retries did not repeat the text received before
    identity: Identity
    speculation: dict[str, Any] | None

    @property
    def is_good(self) -> bool:
        """Whether every request was answered, and answers to the same question were identical."""
        return not (self.failed or self.diverged or self.identity.differing)


def figures(records: Sequence[RequestRecord], slo: Slo | None = None, is_greedy: bool = False) -> LoadFigures:
    """Figures of ended requests; latencies are those of whole answers."""
    good = [record for record in records if record.ok]
    breaks = [found for record in records for found in record.breaks]
    broken = [found for found in breaks if found.kind in STREAM_BREAKS]
    seconds = max((r.ended for r in records), default=0.0) - min((r.intended for r in records), default=0.0)
    tokens, met = _sum(r.completion_tokens for r in good), _met(good, slo)
    return LoadFigures(
        requests=len(records),
        ok=len(good),
        failed=len(records) - len(good),
        seconds=seconds,
        ttft=percentiles(r.ttft for r in good),
        tpot=percentiles(r.tpot for r in good),
        inter_chunk=percentiles(gap for r in good for gap in r.gaps),
        tokens_per_chunk=percentiles(r.tokens_per_chunk for r in good),
        e2e=percentiles(r.e2e for r in good),
        lateness=percentiles(r.lateness for r in records),
        requests_per_s=ratio(len(good), seconds) or 0.0,
        output_tokens=tokens,
        output_tokens_per_s=ratio(tokens, seconds),
        prompt_tokens=_sum(r.prompt_tokens for r in good),
        slo="" if slo is None else slo.text,
        goodput=ratio(met, seconds),
        slo_met=met,
        errors=dict(Counter(r.outcome for r in records if not r.ok)),
        messages={found.kind: found.message for found in reversed(breaks)},
        failed_attempts=dict(Counter(found.kind for found in breaks)),
        retry_after=percentiles(found.retry_after for found in breaks if found.kind == TOO_MANY),
        retries=sum(r.retries for r in records),
        recovery=percentiles(found.recovered for found in broken),
        unrecovered=sum(found.recovered is None for found in broken),
        diverged=sum(r.diverged for r in records),
        identity=identity(records, is_greedy),
        speculation=speculation([r.speculation for r in good if r.speculation]),
    )


def speculation(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Sums over the ``metrics.speculative_decoding`` of answers, and means of the sums; None without answers."""
    if not answers:
        return None
    steps, drafted, accepted = (
        sum(int(one.get(name) or 0) for one in answers)
        for name in ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    )
    return {
        "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "num_spec_steps": steps,
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": accepted,
        "by_source": summed(one.get("by_source") or {} for one in answers),
    }


def _met(good: Sequence[RequestRecord], slo: Slo | None) -> int | None:
    """How many answers met the SLO; None without an SLO, or if it is unknown of an answer."""
    verdicts = [] if slo is None else [slo.met(record) for record in good]
    return None if slo is None or None in verdicts else sum(map(bool, verdicts))


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum; None if there is no value, or an unknown one."""
    known = list(values)
    return None if not known or None in known else sum(value or 0 for value in known)


def identity(records: Iterable[RequestRecord], is_greedy: bool) -> Identity:
    """Compare whole answers to the same prompt and seed; a greedy answer does not depend on the seed.

    Requests without a seed are compared only if greedy.
    """
    comparable = [record for record in records if record.ok and (is_greedy or record.seed is not None)]
    groups = grouped(comparable, lambda record: (record.prompt, None if is_greedy else record.seed))
    several = [group for group in groups.values() if len(group) > 1]
    differing = [found for group in several if (found := _first_difference(group))]
    return Identity(sum(map(len, several)), len(several), differing)


def _first_difference(group: list[RequestRecord]) -> str:
    """The first answer that differs from the group's first, in words; empty if all are the same."""
    a = group[0]
    b = next((b for b in group if (b.text, b.completion_tokens) != (a.text, a.completion_tokens)), None)
    if b is None:
        return ""
    pairs = zip(a.text, b.text, strict=False)
    at = next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a.text), len(b.text)))
    seeds = f"seed {a.seed}" if a.seed == b.seed else f"seeds {a.seed}, {b.seed}"
    ends = f"{a.text[at : at + SHOWN_CHARS]!r} and {b.text[at : at + SHOWN_CHARS]!r}"
    return f"prompt {a.prompt}, {seeds}, requests {a.index} and {b.index}: from character {at} on {ends}"
