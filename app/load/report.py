"""The report of a load: tables for people, one JSON document for programs, plots, and the files of all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from app.load.figures import LoadFigures
from app.load.records import RequestRecord
from app.load.run import LoadRun
from app.load.settings import LoadProfile, Slo
from app.reporting.plotting import LABEL, can_plot, colour, grid, headroom, label, save
from app.reporting.report import NOTHING, as_line, markdown, number, write_document, write_lines, write_report
from app.reporting.summaries import Percentiles

LATENCIES = {
    "TTFT, ms": ("ttft", 1e3),
    "TPOT, ms": ("tpot", 1e3),
    "inter-chunk, ms": ("inter_chunk", 1e3),
    "E2E, ms": ("e2e", 1e3),
    "sent late, ms": ("lateness", 1e3),
    "tokens per chunk": ("tokens_per_chunk", 1.0),
    "recovery of broken streams, ms": ("recovery", 1e3),
}
TRACE_FIGURES = ("file", "form", "speed", "left_out", "input_tokens", "output_tokens")
BUSY = 0.8  # of a core: above, the client may limit the load
LATE_S = 0.02  # above, the client's lateness distorts latencies
BINS = 60  # of the timeline, at most
SHORTEST_BIN_S = 0.1


def publish(whole: Mapping[str, Any], shown: Sequence[str], folder: Path | None, file: Path | None) -> None:
    """Print the document, and write it and the tables to ``folder`` and ``file`` if given."""
    if file is not None:
        write_document(whole, file)
    if folder is not None:
        write_report(folder, "load.json", whole, "\n\n".join(shown))
    print(as_line(whole), flush=True)


def write_requests(records: Sequence[RequestRecord], folder: Path, slo: Slo | None) -> None:
    """Write the records of a load and, if they can be drawn, their plots to ``folder``, which is made if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_records(records, folder / "records.jsonl")
    if can_plot():
        plots(records, folder, slo)


def write_records(records: Sequence[RequestRecord], path: Path) -> None:
    """Write a line per request: its text, and all its times in seconds from the first intended arrival."""
    zero = min((record.intended for record in records), default=0.0)
    write_lines((_shifted(record, zero) for record in records), path)


def _shifted(record: RequestRecord, zero: float) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(record)
    for name in ("intended", "sent", "ended"):
        fields[name] = round(fields[name] - zero, 6)
    fields["chunks"] = [round(at - zero, 6) for at in fields["chunks"]]
    for found in fields["breaks"]:
        found["at"] = round(found["at"] - zero, 6)
    return fields


def document(load: LoadProfile, asked: Mapping[str, Any], found: LoadFigures, ran: LoadRun) -> dict[str, Any]:
    is_closed = load.rate is None and load.trace is None
    chunks = sum(len(record.chunks) for record in ran.records)
    settings = {
        "url": load.endpoint.url,
        "loop": "closed" if is_closed else "open",
        "concurrency": load.concurrency if is_closed else None,
        "arrivals": None if is_closed else "trace" if load.trace else load.arrivals,
        "trace": None if load.trace is None else {name: getattr(load.trace, name) for name in TRACE_FIGURES},
        **{name: getattr(load, name) for name in ("rate", "requests", "duration", "seed", "retries")},
        "timeout": load.endpoint.timeout,
        "body": dict(asked),
    }
    client = {
        "cpu_seconds": ran.cpu_seconds,
        "cpu_share": ran.cpu_share,
        "chunks": chunks,
        "cpu_us_per_chunk": 1e6 * ran.cpu_seconds / chunks if chunks else None,
    }
    warmup = {"requests": len(ran.warmup), "failed": sum(not record.ok for record in ran.warmup)}
    shown = msgspec.to_builtins(found) | {"is_good": found.is_good}
    return {"settings": settings, **shown, "warmup": warmup, "client": client}


def tables(load: LoadProfile, found: LoadFigures, ran: LoadRun) -> str:
    """The report as Markdown, with warnings below the tables."""
    rows = []
    for name, (key, factor) in LATENCIES.items():
        spread: Percentiles | None = getattr(found, key)
        if spread is not None:
            shown = (spread.mean, spread.p50, spread.p90, spread.p99, spread.max)
            rows.append([name, *(number(factor * value) for value in shown), str(spread.n)])
    totals = _totals(found)
    if trace := load.trace:
        totals.append(["prompt / output tokens of the trace", f"{trace.input_tokens} / {trace.output_tokens}"])
        totals.append(["requests of the trace left out, as they have no answer", str(trace.left_out)])
    parts = [f"## {load.label}: {load.endpoint.url}", markdown(("", "figure"), totals)]
    parts += [markdown(("of whole answers", "mean", "p50", "p90", "p99", "max", "n"), rows)] if rows else []
    if found.failed_attempts:
        failed = [
            [kind, found.messages[kind], str(n), str(found.errors.get(kind, 0))]
            for kind, n in found.failed_attempts.items()
        ]
        parts.append(markdown(("failed attempts", "first message", "all", "for good"), failed, 2))
    return "\n\n".join([*parts, *notes(found, ran)])


def notes(found: LoadFigures, ran: LoadRun) -> list[str]:
    lines = []
    if found.ok and found.output_tokens is None:
        lines.append("The server sent no usage with some answers: no figures per token (SSE events are not tokens).")
    if found.diverged:
        lines.append(f"DIVERGED: {found.diverged} retried requests did not repeat the text received before the break.")
    if found.identity.differing:
        lines.append(f"DIVERGED: {len(found.identity.differing)} of {found.identity.groups} repeated questions were "
                    f"answered differently, such as {found.identity.differing[0]}")  # fmt: skip
    if ran.cpu_share > BUSY:
        lines.append(f"The client used {ran.cpu_share:.0%} of a core: it may have been the bottleneck.")
    if found.lateness is not None and found.lateness.p99 > LATE_S:
        lines.append(f"The client sent late: p99 {found.lateness.p99 * 1e3:.0f} ms after the intended arrival.")
    if any(not record.ok for record in ran.warmup):
        lines.append("Some requests of the warm-up failed.")
    return lines


def _totals(found: LoadFigures) -> list[list[str]]:
    rows = [
        ("requests answered", f"{found.ok} of {found.requests}"),
        ("seconds", number(found.seconds)),
        ("requests/s", number(found.requests_per_s)),
        ("output tokens/s", number(found.output_tokens_per_s, 1)),
        ("prompt / output tokens", f"{number(found.prompt_tokens, 0)} / {number(found.output_tokens, 0)}"),
    ]
    if found.slo:
        share = NOTHING if found.slo_met is None else f"{found.slo_met} of {found.requests}"
        rows.append((f"goodput, requests/s with {found.slo}", f"{number(found.goodput)} ({share})"))
    if wait := found.retry_after:
        rows.append(("429 with Retry-After", f"{wait.n}, {wait.p50:g} s (p50) to {wait.max:g} s"))
    if found.retries:
        rows.append(("retries", str(found.retries)))
    if found.unrecovered:
        rows.append(("broken streams that never continued", str(found.unrecovered)))
    if same := found.identity.groups:
        equal = same - len(found.identity.differing)
        rows.append(
            ("repeated questions with identical answers", f"{equal} of {same} ({found.identity.compared} answers)")
        )
    if sums := found.speculation:
        drafted, accepted = sums["num_draft_tokens"], sums["num_accepted_draft_tokens"]
        rows.append(("mean acceptance length", number(sums["mean_acceptance_length"])))
        rows.append(("draft tokens accepted", f"{accepted} of {drafted} ({sums['draft_acceptance_rate']:.1%})"))
    return [list(row) for row in rows]


def plots(records: Sequence[RequestRecord], folder: Path, slo: Slo | None = None) -> list[Path]:
    """Draw what the records allow; returns the files, none without records.

    ``latency.png``: distributions of TTFT, TPOT and gaps between chunks, with the SLO's limits. ``timeline.png``:
    throughput, requests in flight, and failed attempts if there are any.
    """
    drawn = []
    if any(record.chunks and record.ok for record in records):
        drawn.append(save(_latencies(records, slo or Slo()), folder / "latency.png"))
    if records:
        drawn.append(save(_timeline(records), folder / "timeline.png"))
    return drawn


def _latencies(records: Sequence[RequestRecord], slo: Slo) -> Any:
    figure, axes = grid(1, 3, (11, 3.4))
    good = [record for record in records if record.ok]
    _distribution(axes[0], (r.ttft for r in good), "TTFT, ms", slo.ttft)
    _distribution(axes[1], (r.tpot for r in good), "TPOT, ms per token", slo.tpot)
    _distribution(axes[2], (gap for r in good for gap in r.gaps), "between chunks, ms", None)
    label(axes[0], y="share of requests")
    label(axes[2], y="share of gaps")
    return figure


def _distribution(ax: Any, values: Iterable[float | None], what: str, limit: float | None) -> None:
    known = [1e3 * value for value in values if value is not None]
    if known:
        ax.ecdf(known, color=colour(0))
    if limit is not None:
        ax.axvline(1e3 * limit, color="black", linewidth=0.8, linestyle=":")
    ax.set_ylim(0, 1.02)
    label(ax, what)


def _timeline(records: Sequence[RequestRecord]) -> Any:
    heights = [3, 2, 1] if any(record.breaks for record in records) else [3, 2]
    figure, axes = grid(len(heights), 1, (9, 1.07 * sum(heights)), sharex=True, height_ratios=heights)
    began = min(r.intended for r in records)
    seconds = max(SHORTEST_BIN_S, max(r.ended for r in records) - began)
    n_bins = min(BINS, int(seconds / SHORTEST_BIN_S))
    has_usage = all(r.completion_tokens is not None for r in records if r.ok)
    times, rates = [], []  # of chunks; a request's tokens are shared evenly by its chunks
    for r in records:
        tokens = (r.tokens_per_chunk or 0.0) if has_usage and r.ok else 1.0
        times += [at - began for at in r.chunks]
        rates += [tokens * n_bins / seconds] * len(r.chunks)
    axes[0].hist(times, n_bins, range=(0.0, seconds), weights=rates, color=colour(0))
    label(axes[0], y="output tokens/s" if has_usage else "chunks/s")
    axes[1].step(*_in_flight(records, began), where="post", color=colour(1))
    label(axes[1], y="requests in flight")
    for ax in axes[:2]:
        headroom([ax])
    if len(heights) == 3:
        _failures(axes[2], records, began)
    label(axes[-1], "seconds")
    return figure


def _in_flight(records: Sequence[RequestRecord], began: float) -> tuple[list[float], list[int]]:
    changes = sorted([(r.intended - began, 1) for r in records] + [(r.ended - began, -1) for r in records])
    return [at for at, _ in changes], list(accumulate(change for _, change in changes))


def _failures(ax: Any, records: Sequence[RequestRecord], began: float) -> None:
    """A line of marks for each kind of failed attempt; crosses are final."""
    kinds = sorted({found.kind for record in records for found in record.breaks})
    marks = [
        (found.at - began, kinds.index(found.kind), not record.ok and found is record.breaks[-1])
        for record in records
        for found in record.breaks
    ]
    for is_final, marker, shade in ((False, ".", colour(2)), (True, "x", colour(3))):
        mine = [mark for mark in marks if mark[2] == is_final]
        ax.plot([mark[0] for mark in mine], [mark[1] for mark in mine], marker, color=shade, markersize=6)
    ax.set_yticks(range(len(kinds)), kinds)
    ax.set_ylim(-0.5, len(kinds) - 0.5)
    ax.set_title("failed attempts (x: for good)", fontsize=LABEL)
