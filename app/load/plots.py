"""Plots of a run, as PNG files, from its records."""

from __future__ import annotations

from collections import defaultdict
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


def tokens_by_bin(records: Sequence[RequestRecord], began: float, width: float, n_bins: int) -> list[float]:
    """Output tokens per second in each bin of ``width`` seconds; a request's tokens are shared evenly by its chunks.

    Without usage of every answer: chunks per second.
    """
    counted = all(record.completion_tokens is not None for record in records if record.ok)
    rates = [0.0] * n_bins
    for record in records:
        weight = (record.tokens_per_chunk or 0.0) if counted and record.ok else 1.0
        for at in record.chunks:
            rates[min(n_bins - 1, int((at - began) / width))] += weight / width
    return rates


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
    ranked = sorted(1e3 * value for value in values if value is not None)
    if ranked:
        shares = [(i + 1) / len(ranked) for i in range(len(ranked))]
        ax.step([ranked[0], *ranked], [0.0, *shares], where="post", color=colour(0))
    if limit is not None:
        ax.axvline(1e3 * limit, color="black", linewidth=0.8, linestyle=":")
    ax.set_ylim(0, 1.02)
    label(ax, what)


def _timeline(records: Sequence[RequestRecord]) -> Any:
    heights = [3, 2, 1] if any(record.breaks for record in records) else [3, 2]
    figure, axes = grid(len(heights), 1, (9, 1.07 * sum(heights)), sharex=True, height_ratios=heights)
    began, ended = min(r.intended for r in records), max(r.ended for r in records)
    width = max(SHORTEST_BIN_S, (ended - began) / BINS)
    n_bins = max(1, int((ended - began) / width) + 1)
    middles = [(i + 0.5) * width for i in range(n_bins)]
    axes[0].bar(middles, tokens_by_bin(records, began, width, n_bins), width, color=colour(0))
    has_usage = all(r.completion_tokens is not None for r in records if r.ok)
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
    marks: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for record in records:
        for i, found in enumerate(record.breaks):
            marks[found.kind].append((found.at - began, not record.ok and i == len(record.breaks) - 1))
    for line, (_, moments) in enumerate(sorted(marks.items())):
        for is_final, marker, shade in ((False, ".", colour(2)), (True, "x", colour(3))):
            at = [moment for moment, final in moments if final == is_final]
            ax.plot(at, [line] * len(at), marker, color=shade, markersize=6)
    ax.set_yticks(range(len(marks)), sorted(marks))
    ax.set_ylim(-0.5, len(marks) - 0.5)
    ax.set_title("failed attempts (x: for good)", fontsize=LABEL)
