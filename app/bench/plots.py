"""Plots of a report, as PNG files; settings are rows of axes, never mixed in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from app.bench.figures import Figures, Row, step_curve
from app.bench.records import Record, Setting
from engine.scheduling.drafting import AUTOREGRESSIVE

Report = Mapping[Setting, Sequence[Row]]
ALL = "all"
DPI = 120
COLOURS = [i for i in (*range(0, 20, 2), *range(1, 20, 2)) if i not in (14, 15)]  # of tab20; no greys


def plots(found: Report, records: Sequence[Record], folder: Path) -> list[Path]:
    """Draw what the records allow (without times: acceptance only); returns the files.

    ``tau.png``, ``speedup.png``: by method and category. ``sources.png``: accepted tokens per forward by source.
    ``step_time.png``: seconds of a target step against its nodes.
    """
    drawn = [_save(_acceptance(found), folder / "tau.png")]
    if any(row.total.by_source for rows in found.values() for row in rows):
        drawn.append(_save(_sources(found), folder / "sources.png"))
    if any(row.total.speedup is not None for rows in found.values() for row in rows):
        drawn.append(_save(_speed(found), folder / "speedup.png"))
    if step_curve(records):
        drawn.append(_save(_step_time(records), folder / "step_time.png"))
    return drawn


def _acceptance(found: Report) -> Figure:
    figure, axes = _rows(found, _n_bars(found))
    for ax, (setting, rows) in zip(axes, found.items(), strict=True):
        places = _bars(ax, rows, lambda f: f.tokens_per_forward)
        pre_loop = [(x, f.pre_loop) for x, f in places if f.pre_loop is not None]
        ax.plot(*zip(*pre_loop, strict=True), "k_", markersize=8, label="before an output loops") if pre_loop else None
        _finish(ax, setting, "tau, tokens per forward")
    return figure


def _speed(found: Report) -> Figure:
    figure, axes = _rows(found, _n_bars(found))
    for ax, (setting, rows) in zip(axes, found.items(), strict=True):
        places = _bars(ax, rows, lambda f: None if f.speedup is None else f.speedup.median)
        for x, f in places:
            if f.speedup is not None:
                ax.vlines(x, f.speedup.low, f.speedup.high, color="black", linewidth=0.8)
        ax.axhline(1, color="black", linewidth=0.8, linestyle=":")
        _finish(ax, setting, "speed-up, median and quartiles")
    return figure


def _sources(found: Report) -> Figure:
    figure, axes = _rows(found, max(len(rows) for rows in found.values()))
    names = list(dict.fromkeys(name for rows in found.values() for row in rows for name in row.total.by_source))
    for ax, (setting, every) in zip(axes, found.items(), strict=True):
        rows = [row for row in every if row.total.by_source]
        heights = [0.0] * len(rows)
        for i, name in enumerate(names):
            counts = [row.total.by_source.get(name, {}).get("accepted", 0) for row in rows]
            mine = [n / row.total.forwards if row.total.forwards else 0 for n, row in zip(counts, rows, strict=True)]
            ax.bar(range(len(rows)), mine, bottom=heights, color=_colour(i), label=name)
            heights = [low + more for low, more in zip(heights, mine, strict=True)]
        ax.set_xticks(range(len(rows)), [row.method for row in rows], rotation=20, ha="right")
        _finish(ax, setting, "accepted tokens per forward")
    return figure


def _step_time(records: Sequence[Record]) -> Figure:
    figure, (ax,) = _rows([None], 12)
    curve = step_curve(records)
    middle, low, high = ([getattr(s, name) * 1e3 for s in curve.values()] for name in ("median", "low", "high"))
    ax.plot(list(curve), middle, marker=".", label="median")
    ax.fill_between(list(curve), low, high, alpha=0.25, label="quartiles")
    ax.set_ylim(bottom=0)
    ax.set_xlabel("nodes per step")
    ax.set_ylabel("target, ms per step")
    ax.legend(fontsize=7)
    return figure


def _rows(found: Any, n_bars: int) -> tuple[Figure, list[Any]]:
    """A figure with a row of axes per setting, as wide as its bars need."""
    figure = Figure(figsize=(min(40, max(6, 0.16 * n_bars + 3)), 3.4 * len(found)), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(len(found), 1, squeeze=False, sharey=True)[:, 0])


def _n_bars(found: Report) -> int:
    return max(sum(len(row.by_category) + 1 for row in rows) for rows in found.values())


def _bars(ax: Any, rows: Sequence[Row], value: Callable[[Figures], float | None]) -> list[tuple[float, Figures]]:
    """Bars in groups, one group for all questions and one per category; returns (place, figures) of each bar."""
    categories = list(dict.fromkeys(name for row in rows for name in row.by_category))
    width, places = 0.84 / len(rows), []
    for i, row in enumerate(rows):
        cells = [(0, row.total)]
        cells += [(1 + g, row.by_category[c]) for g, c in enumerate(categories) if c in row.by_category]
        spots = [(group - 0.42 + (i + 0.5) * width, f) for group, f in cells]
        heights = [value(f) or 0.0 for _, f in spots]
        ax.bar([x for x, _ in spots], heights, width, color=_colour(i, row.method), label=row.method)
        places += spots
    ax.set_xticks(range(1 + len(categories)), [ALL, *categories], rotation=20, ha="right")
    return places


def _finish(ax: Any, setting: Setting, what: str) -> None:
    ax.set_title(setting.label, fontsize=9)
    ax.set_ylabel(what, fontsize=8)
    ax.tick_params(labelsize=8)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _colour(i: int, method: str = "") -> Any:
    """Of the i-th method or source; what the others are held against is grey."""
    return "0.6" if method == AUTOREGRESSIVE else colormaps["tab20"](COLOURS[i % len(COLOURS)])


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=DPI)
    return path
