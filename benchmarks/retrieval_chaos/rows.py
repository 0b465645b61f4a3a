"""Figures of every phase and of every kind of phase, from what was seen; not how they are shown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.retrieval_chaos.answers import Answer
from benchmarks.retrieval_chaos.measurement import Result
from benchmarks.retrieval_chaos.pauses import Pairs, pause_figures, within
from benchmarks.retrieval_chaos.phases import Phase

MEDIANS = (
    *("pause_median", "pause_p99", "pause_longest", "pause_longest_net", "timer_late", "first_event_longest"),
    *("tokens_per_forward", "tokens_per_forward_learner", "seen_after_seconds"),
)


def row_of(phase: Phase, result: Result, gaps: Pairs, net: Pairs) -> dict[str, Any]:
    """Figures of one phase; times in ms unless their name says seconds."""
    ended = [answer for answer in result.answers if phase.began <= answer.ended < phase.ended]
    firsts = [(a.events[0], a.events[0] - a.began) for a in result.answers if a.events]
    return {
        "phase": phase.name,
        "round": phase.round,
        "seconds": round(phase.ended - phase.began, 2),
        "requests": len(ended),
        "failures": sum(bool(answer.failure) for answer in ended),
        "different_texts": sum(answer.text != result.reference[answer.prompt] for answer in ended),
        **pause_figures(phase, gaps, net),
        "first_event_longest": round(1000 * max(within(sorted(firsts), phase), default=0.0), 1),
        "timer_late": round(1000 * max(within(result.beats, phase), default=0.0), 1),
        "tokens_per_forward": _per_forward([a for a in ended if not a.namespace]),
        "tokens_per_forward_learner": _per_forward([a for a in ended if a.namespace]),
        "version": phase.version,
        "seen_after_seconds": None if phase.seen_after is None else round(phase.seen_after, 2),
        "staleness_seconds": round(phase.staleness, 1),
        "problem": phase.problem,
        "note": phase.note,
        "wrong": phase.wrong,
    }


def _per_forward(answers: Sequence[Answer]) -> float | None:
    """Tokens per decode forward; the prefill gives the first token of each."""
    n_steps = sum(answer.steps for answer in answers)
    return round(sum(answer.tokens - 1 for answer in answers) / n_steps, 3) if n_steps else None


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per kind of phase: sums of counts, medians of figures, and the longest pause of all."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault(row["phase"], []).append(row)
    return [{"phase": name, "times": len(some)} | _merged(some) for name, some in kinds.items()]


def _merged(some: Sequence[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {key: sum(row[key] for row in some) for key in ("requests", "failures", "different_texts")}
    for key in MEDIANS:
        known = [row[key] for row in some if row[key] is not None]
        merged[key] = round(statistics.median(known), 2) if known else None
    for key in ("pause_longest", "pause_longest_net"):
        merged[f"{key}_of_all"] = max(row[key] for row in some)
    return merged
