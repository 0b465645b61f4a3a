"""Figures of every phase and of every kind of phase, from what the clients received."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from app.load.records import RequestRecord
from benchmarks.resilience.phases import Pairs, pause_figures, within
from benchmarks.resilience.retrieval.driver import ChangePhase
from benchmarks.resilience.streams import ClientStreams
from benchmarks.support.reporting import table

LEARNER = 0  # the client whose namespace learns
MEDIANS = (
    *("pause_median", "pause_p99", "pause_longest", "pause_longest_net", "timer_late", "first_chunk_longest"),
    *("tokens_per_forward", "tokens_per_forward_learner", "seen_after_seconds"),
)
HEADINGS = {
    "phase": "phase",
    "times": "times",
    "requests": "done",
    "failures": "failed",
    "different_texts": "other text",
    "pause_median": "median",
    "pause_p99": "p99",
    "pause_longest": "longest",
    "longest_at_seconds": "at s",
    "timer_late": "late",
    "pause_longest_net": "net",
    "pause_longest_of_all": "longest of all",
    "pause_longest_net_of_all": "net of all",
    "first_chunk_longest": "first",
    "tokens_per_forward": "tok/fwd",
    "tokens_per_forward_learner": "learner",
    "version": "version",
    "seen_after_seconds": "seen s",
    "staleness_seconds": "stale s",
}


def row_of(phase: ChangePhase, streams: ClientStreams, gaps: Pairs, net: Pairs, lateness: Pairs) -> dict[str, Any]:
    """Figures of one phase; times in ms unless their name says seconds."""
    ended = [record for record in streams.records if phase.began <= record.ended < phase.ended]
    firsts = sorted((r.chunks[0], r.chunks[0] - r.sent) for r in streams.records if r.chunks)
    return {
        "phase": phase.name,
        "round": phase.round,
        "seconds": round(phase.ended - phase.began, 2),
        "requests": len(ended),
        "failures": sum(not record.ok for record in ended),
        "different_texts": sum(map(streams.is_different, ended)),
        **pause_figures(phase, gaps, net),
        "first_chunk_longest": round(1000 * max(within(firsts, phase), default=0.0), 1),
        "timer_late": round(1000 * max(within(lateness, phase), default=0.0), 1),
        "tokens_per_forward": _per_forward([record for record in ended if record.index != LEARNER]),
        "tokens_per_forward_learner": _per_forward([record for record in ended if record.index == LEARNER]),
        "version": phase.version,
        "seen_after_seconds": None if phase.seen_after is None else round(phase.seen_after, 2),
        "staleness_seconds": round(phase.staleness, 1),
        "problem": phase.problem,
        "note": phase.note,
        "wrong": phase.wrong,
    }


def _per_forward(records: Sequence[RequestRecord]) -> float | None:
    """Tokens per decode forward; the prefill gives the first token of each answer."""
    known = [(r.completion_tokens, r.speculation) for r in records if r.completion_tokens and r.speculation]
    n_steps = sum(speculation["num_spec_steps"] for _, speculation in known)
    return round(sum(tokens - 1 for tokens, _ in known) / n_steps, 3) if n_steps else None


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


def tables(rows: Sequence[dict[str, Any]], names: dict[str, str]) -> str:
    """Every phase, and every kind of phase; ``names`` maps versions to what the snapshots are called."""
    named = [row | {"version": names.get(row["version"], row["version"]) or "none"} for row in rows]
    return f"{_table(named)}\n\nMedians over all phases of a kind:\n\n{_table(summary(rows))}"


def _table(rows: Sequence[dict[str, Any]]) -> str:
    return table({key: heading for key, heading in HEADINGS.items() if key in rows[0]}, rows)
