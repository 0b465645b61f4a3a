"""Plots of a report, as PNG files; every setting has a row of axes of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from app.bench.figures import MethodFigures, MethodRow, step_curve
from app.bench.records import BenchSetting, TurnRecord
from app.reporting.plotting import LABEL, LEGEND, colour, grid, headroom, label, save
from app.reporting.summaries import ratio
from engine.scheduling.drafting import AUTOREGRESSIVE

Report = Mapping[BenchSetting, Sequence[MethodRow]]
ALL = "all"


def plots(found: Report, records: Sequence[TurnRecord], folder: Path) -> list[Path]:
    """Draw what the records allow (without times: acceptance only); returns the files.

    ``tau.png``, ``speedup.png``: by method and category. ``sources.png``: accepted tokens per forward by source.
    ``step_time.png``: seconds of a target step against its nodes.
    """
    every = [row for rows in found.values() for row in rows]
    n_bars = max(len(rows) * (1 + len(_categories(rows))) for rows in found.values())
    drawn = [save(_figure(found, n_bars, "tau, tokens per forward", _acceptance), folder / "tau.png")]
    if names := list(dict.fromkeys(name for row in every for name in row.total.by_source)):
        n_rows = max(len(rows) for rows in found.values())
        figure = _figure(found, n_rows, "accepted tokens per forward", partial(_sources, names))
        drawn.append(save(figure, folder / "sources.png"))
    if any(row.total.speedup is not None for row in every):
        drawn.append(save(_figure(found, n_bars, "speed-up, median and quartiles", _speed), folder / "speedup.png"))
    if step_curve(records):
        drawn.append(save(_step_time(records), folder / "step_time.png"))
    return drawn


def _figure(found: Report, n_bars: int, what: str, draw: Callable[[Any, Sequence[MethodRow]], None]) -> Any:
    """A figure as wide as its bars need; ``draw`` fills the axes of each setting."""
    figure, axes = grid(len(found), 1, (min(40, max(6, 0.16 * n_bars + 3)), 3.4 * len(found)), sharey=True)
    for ax, (setting, rows) in zip(axes, found.items(), strict=True):
        draw(ax, rows)
        ax.set_title(setting.label, fontsize=LABEL + 1)
        label(ax, y=what)
        if ax.get_legend_handles_labels()[0]:
            ax.legend(fontsize=LEGEND, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    headroom(axes)
    return figure


def _acceptance(ax: Any, rows: Sequence[MethodRow]) -> None:
    bars = _bars(ax, rows, lambda f: f.tokens_per_forward)
    pre_loop = [(x, f.pre_loop_tokens_per_forward) for x, f in bars if f.pre_loop_tokens_per_forward is not None]
    if pre_loop:
        ax.plot(*zip(*pre_loop, strict=True), "k_", markersize=8, label="before an output loops")


def _speed(ax: Any, rows: Sequence[MethodRow]) -> None:
    for x, f in _bars(ax, rows, lambda f: f.speedup):
        if f.speedup_quartiles is not None:
            ax.vlines(x, f.speedup_quartiles.low, f.speedup_quartiles.high, color="black", linewidth=0.8)
    ax.axhline(1, color="black", linewidth=0.8, linestyle=":")


def _sources(names: Sequence[str], ax: Any, every: Sequence[MethodRow]) -> None:
    rows = [row for row in every if row.total.by_source]
    heights = [0.0] * len(rows)
    for i, name in enumerate(names):
        counts = [row.total.by_source.get(name, {}).get("accepted", 0) for row in rows]
        mine = [ratio(n, row.total.target_forwards) or 0.0 for n, row in zip(counts, rows, strict=True)]
        ax.bar(range(len(rows)), mine, bottom=heights, color=colour(i), label=name)
        heights = [low + more for low, more in zip(heights, mine, strict=True)]
    ax.set_xticks(range(len(rows)), [row.method for row in rows], rotation=20, ha="right")


def _step_time(records: Sequence[TurnRecord]) -> Any:
    figure, axes = grid(1, 1, (6, 3.4))
    curve = step_curve(records)
    middle, low, high = ([getattr(s, name) * 1e3 for s in curve.values()] for name in ("median", "low", "high"))
    axes[0].plot(list(curve), middle, marker=".", label="median")
    axes[0].fill_between(list(curve), low, high, alpha=0.25, label="quartiles")
    axes[0].legend(fontsize=LEGEND)
    label(axes[0], "nodes per step", "target, ms per step")
    headroom(axes)
    return figure


def _categories(rows: Sequence[MethodRow]) -> list[str]:
    """Categories that differ from all questions: none if all questions are of one category."""
    names = list(dict.fromkeys(name for row in rows for name in row.by_category))
    return names if len(names) > 1 else []


def _bars(
    ax: Any, rows: Sequence[MethodRow], value: Callable[[MethodFigures], float | None]
) -> list[tuple[float, MethodFigures]]:
    """Bars in groups, one group for all questions and one per category; returns (x, figures) of each bar."""
    categories = _categories(rows)
    width, bars = 0.84 / len(rows), []
    for i, row in enumerate(rows):
        cells = [(0, row.total)]
        cells += [(1 + g, row.by_category[c]) for g, c in enumerate(categories) if c in row.by_category]
        mine = [(group - 0.42 + (i + 0.5) * width, f) for group, f in cells]
        heights = [value(f) or 0.0 for _, f in mine]
        shade = "0.6" if row.method == AUTOREGRESSIVE else colour(i)  # the reference is grey
        ax.bar([x for x, _ in mine], heights, width, color=shade, label=row.method)
        bars += mine
    ax.set_xticks(range(1 + len(categories)), [ALL, *categories], rotation=20, ha="right")
    return bars
