"""Plots of a run, as PNG files, from its records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from app.load.records import RequestRecord
from app.load.settings import Slo
from app.reporting.plotting import LABEL, colour, grid, headroom, label, save

BINS = 60  # of the timeline, at most
SHORTEST_BIN_S = 0.1


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
