"""The table, the document and the picture of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from app.reporting.plotting import LEGEND, colour, grid, label, save
from benchmarks.never_slower.cells import AUTO, NONE
from benchmarks.never_slower.summary import Summary, categories, fixed_methods, medians, misses, shown
from benchmarks.support.reporting import BenchmarkReport, table
from benchmarks.support.statistics import Interval

COLUMNS = {
    "machine": "machine",
    "prompts": "prompts",
    "temperature": "T",
    "streams": "streams",
    "over_none": "over none (95 %)",
    "after_prompts": "after prompts",
    "over_best_fixed": "over best fixed (95 %)",
    "best_fixed": "best fixed",
    "tokens": "tokens a forward",
    "nodes": "nodes a tree",
    "host_us": "host us a step, none / auto",
    "turns": "turns",
}


def report(summaries: Sequence[Summary], settings: dict[str, Any]) -> BenchmarkReport:
    """Return the figures of a run."""
    short, by_category, gains = misses(summaries), categories(summaries), medians(summaries)
    text = [
        table(COLUMNS, [_row(one) for one in summaries]),
        "Median gain: " + ", ".join(f"{name} {gain:.2f}" for name, gain in gains.items()),
        "Over the best fixed method: " + ", ".join(f"{name} {shown(one)}" for name, one in by_category.items()),
        *(f"below the bar: {miss}" for miss in short),
    ]
    document = {
        "settings": settings,
        "cells": [_entry(one) for one in summaries],
        "median_gain": gains,
        "over_best_fixed": {name: _figures(one) for name, one in by_category.items()},
        "misses": short,
    }
    return BenchmarkReport(document, "\n\n".join(text), bool(short), partial(draw, summaries) if summaries else None)


def draw(summaries: Sequence[Summary], folder: Path) -> None:
    """Draw ``never-slower.png``: gain over no speculation by streams, a panel per machine and temperature."""
    machines = list(dict.fromkeys(one.cell.machine for one in summaries))
    temperatures = sorted({one.cell.temperature for one in summaries})
    kinds = list(dict.fromkeys(one.cell.prompts for one in summaries))
    figure, axes = grid(len(machines), len(temperatures), (3.6 * len(temperatures), 2.8 * len(machines)))
    for ax, (machine, temperature) in zip(axes, product(machines, temperatures), strict=True):
        for i, kind in enumerate(kinds):
            line = sorted((one.cell.streams, one) for one in summaries if one.cell[:3] == (machine, kind, temperature))
            found = [one.over_none.interval for _, one in line]
            ratios, low, high = ([getattr(one, name) for one in found] for name in ("ratio", "low", "high"))
            errors = np.abs([low, high] - np.array(ratios))
            ax.errorbar([n for n, _ in line], ratios, errors, fmt="o-", ms=3, lw=1, color=colour(i), label=kind)
        ax.axhline(1.0, color="k", linewidth=0.8, linestyle=":")
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.set_title(f"{machine}, T = {temperature:g}", fontsize=9)
        label(ax, "streams", "auto over no speculation")
        ax.legend(fontsize=LEGEND)
    save(figure, folder / "never-slower.png")


def _row(one: Summary) -> dict[str, Any]:
    return one.cell._asdict() | {
        "over_none": shown(one.over_none.interval),
        "after_prompts": f"{one.after_prompts:.3f}",
        "over_best_fixed": None if one.over_fixed is None else shown(one.over_fixed.interval),
        "best_fixed": " / ".join(dict.fromkeys(one.best)) or None,
        "tokens": f"{one.per_forward(AUTO):.2f}",
        "nodes": f"{one.nodes(AUTO):.1f}",
        "host_us": f"{one.host_us(NONE):.0f} / {one.host_us(AUTO):.0f}",
        "turns": len(one.turns),
    }


def _entry(one: Summary) -> dict[str, Any]:
    methods = [AUTO, NONE, *fixed_methods(one.turns)]
    return one.cell._asdict() | {
        "over_none": _figures(one.over_none.interval),
        "over_none_after_prompts": round(one.after_prompts, 4),
        "over_best_fixed": None if one.over_fixed is None else _figures(one.over_fixed.interval),
        "best_fixed": one.best,
        "turns": len(one.turns),
        "identical": not one.differing,
        "methods": {
            method: {
                "tokens_per_forward": round(one.per_forward(method), 3),
                "nodes_per_tree": round(one.nodes(method), 2),
                "host_us": round(one.host_us(method), 1),
                "seconds": round(one.mean_seconds(method), 4),
                "over_none": _figures(one.over_none_of(method).interval),
            }
            for method in methods
        },
    }


def _figures(interval: Interval) -> dict[str, float]:
    return {name: round(value, 4) for name, value in asdict(interval).items()}
