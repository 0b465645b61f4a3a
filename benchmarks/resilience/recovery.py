"""Seeded streams over disturbances, one after the other: what clients ask, and what it came to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from app.inputs.prompts import BUILTIN
from app.load.records import Break
from benchmarks.resilience import plots
from benchmarks.resilience.observation import Sample
from benchmarks.resilience.phases import Pairs, Phase, longest_and_recovery, pauses
from benchmarks.resilience.streams import ClientStreams, chat
from benchmarks.support.reporting import BenchmarkReport, table

METHODS = (None, "autoregressive", "pld", "suffix", "spectra-core", "suffix+token-recycling")  # None: the server's
FLOW_S = 90.0  # longest wait for all streams to go on
SETTLE_S = 15.0  # longest wait for sessions and blocks to be freed

P = TypeVar("P", bound=Phase)


def question(model: str, client: int, max_tokens: int) -> dict[str, Any]:
    """What a client asks: half of them greedily, half with a seed, with six methods."""
    sampling = {"ignore_eos": True, "temperature": 0.8 if client % 2 else 0.0, "seed": 100 + client}
    method = METHODS[client % len(METHODS)]
    speculative = {} if method is None else {"speculative": {"method": method}}
    return chat(model, BUILTIN[client % len(BUILTIN)], max_tokens, **sampling, **speculative)


def report(
    kind: str,
    columns: Mapping[str, str],
    phases: Sequence[P],
    row_of: Callable[[P, list[Break]], dict[str, Any]],
    streams: ClientStreams,
    samples: Sequence[Sample],
    leaks: list[str],
) -> BenchmarkReport:
    """What the disturbances came to; it failed if anything was lost, different, left over or otherwise wrong.

    Args:
        kind: what the phases are called in the document.
        columns: of the table: keys of a row and their headings.
        phases: in each of which one thing was done.
        row_of: figures of a phase, given the attempts of clients that failed in it; may note what was wrong.
        streams: that ran meanwhile.
        samples: looks at the server meanwhile.
        leaks: what was left over at the end.
    """
    received = streams.received
    gaps = pauses(received.values())
    breaks = [found for record in streams.records for found in record.breaks]
    rows = []
    for phase in phases:
        own = row_of(phase, [found for found in breaks if phase.acted <= found.at <= phase.ended])
        rows.append(own | _recovery(phase, samples, gaps) | {"notes": phase.wrong})
    wrong = [f"{phase.name}: {what}" for phase in phases for what in phase.wrong]
    document = streams.summary() | {"leaks": leaks, "wrong": wrong, kind: rows}
    shown = table(columns, [row | {"notes": "; ".join(row["notes"]), "not_ready": _span(row)} for row in rows])
    print(shown)
    failed = any(document[what] for what in ("failed", "different_texts", "leaks", "wrong"))
    return BenchmarkReport(
        document, shown, failed, lambda out: plots.chaos(phases, received, samples, out / "timeline.png")
    )


def _recovery(phase: Phase, samples: Sequence[Sample], gaps: Pairs) -> dict[str, Any]:
    longest, recovered = longest_and_recovery(phase, gaps)
    down = [one.at - phase.acted for one in samples if phase.acted <= one.at <= phase.ended and not one.is_ready]
    return {
        "not_ready_from": round(down[0], 2) if down else None,
        "not_ready_until": round(down[-1], 2) if down else None,
        "longest_pause": round(longest, 2),
        "recovered_seconds": round(recovered, 2),
    }


def _span(row: Mapping[str, Any]) -> str | None:
    """When a row was not ready, for the table."""
    return None if row["not_ready_from"] is None else f"{row['not_ready_from']} - {row['not_ready_until']}"
