"""The Markdown tables of phases and kinds of phases; not where their figures come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.retrieval_chaos.rows import summary

COLUMNS = {
    "phase": "phase",
    "requests": "done",
    "failures": "failed",
    "pause_median": "median",
    "pause_p99": "p99",
    "pause_longest": "longest",
    "longest_at_seconds": "at s",
    "timer_late": "late",
    "pause_longest_net": "net",
    "first_event_longest": "first",
    "tokens_per_forward": "tok/fwd",
    "tokens_per_forward_learner": "learner",
    "version": "version",
    "seen_after_seconds": "seen s",
    "staleness_seconds": "stale s",
}
SUMMARY = {
    "phase": "phase",
    "times": "times",
    "requests": "done",
    "failures": "failed",
    "different_texts": "other text",
    "pause_median": "median",
    "pause_p99": "p99",
    "pause_longest": "longest",
    "pause_longest_net": "net",
    "pause_longest_of_all": "longest of all",
    "pause_longest_net_of_all": "net of all",
    "timer_late": "late",
    "tokens_per_forward": "tok/fwd",
    "tokens_per_forward_learner": "learner",
    "seen_after_seconds": "seen s",
}


def table(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(columns.values()) + " |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join("-" if row[key] is None else str(row[key]) for key in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def tables(rows: Sequence[dict[str, Any]], names: dict[str, str]) -> str:
    """Every phase, and every kind of phase."""
    named = [row | {"version": names.get(row["version"], row["version"]) or "none"} for row in rows]
    return f"{table(named, COLUMNS)}\nMedians over all phases of a kind:\n\n{table(summary(rows), SUMMARY)}"
