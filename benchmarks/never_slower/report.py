"""The table, the document and the picture of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from app.reporting.plotting import LEGEND, colour, grid, label, save
from app.reporting.report import markdown, number
from benchmarks.never_slower.cells import AUTO, NONE
from benchmarks.never_slower.summary import (
    Summary,
    categories,
    fixed_methods,
    medians,
    misses,
    over_fixed_by_streams,
    shown,
)
from benchmarks.support.reporting import BenchmarkReport
from benchmarks.support.statistics import Interval

HEAD = (
    "machine",
    "prompts",
    "T",
    "streams",
    "over none (95 %)",
    "after prompts",
    "over best fixed (95 %)",
    "best fixed",
    "tokens a forward",
    "nodes a tree",
    "host us a step, none / auto",
    "turns",
)


def report(summaries: Sequence[Summary], settings: dict[str, Any]) -> BenchmarkReport:
    """Return the figures of a run."""
    short = misses(summaries)
    found, by_streams = categories(summaries), over_fixed_by_streams(summaries)
    text = [
        markdown(HEAD, [_row(one) for one in summaries], n_names=2),
        "Median gain: " + ", ".join(f"{name} {gain:.2f}" for name, gain in medians(summaries).items()),
        "Over the best fixed method: " + ", ".join(f"{name} {shown(one)}" for name, one in found.items()),
        "By streams: " + ", ".join(f"{name} {shown(one)}" for name, one in by_streams.items()),
        *(f"below the bar: {miss}" for miss in short),
    ]
    document = {
        "settings": settings,
        "cells": [_entry(one) for one in summaries],
        "median_gain": medians(summaries),
        "over_best_fixed": {name: _figures(one) for name, one in found.items()},
        "over_best_fixed_by_streams": {name: _figures(one) for name, one in by_streams.items()},
        "misses": short,
    }
    return BenchmarkReport(document, "\n\n".join(text), bool(short), partial(draw, summaries) if summaries else None)


def draw(summaries: Sequence[Summary], folder: Path) -> None:
    """Draw ``never-slower.png``: gain over no speculation by streams, a panel per machine and temperature."""
    machines = list(dict.fromkeys(one.cell.machine for one in summaries))
    temperatures = sorted({one.cell.temperature for one in summaries})
    kinds = list(dict.fromkeys(one.cell.prompts for one in summaries))
    figure, axes = grid(len(machines), len(temperatures), (3.6 * len(temperatures), 2.8 * len(machines)))
    for i, machine in enumerate(machines):
        for j, temperature in enumerate(temperatures):
            ax = axes[i * len(temperatures) + j]
            for k, kind in enumerate(kinds):
                here = (machine, kind, temperature)
                line = sorted((one.cell.streams, one) for one in summaries if one.cell[:3] == here)
                if line:
                    found = [one.over_none.interval for _, one in line]
                    errors = [[max(0.0, one.ratio - one.low), max(0.0, one.high - one.ratio)] for one in found]
                    ratios, streams = [one.ratio for one in found], [n for n, _ in line]
                    ax.errorbar(
                        streams, ratios, [*zip(*errors, strict=True)], fmt="o-", ms=3, lw=1, color=colour(k), label=kind
                    )
            ax.axhline(1.0, color="k", linewidth=0.8, linestyle=":")
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_formatter("{x:g}")
            ax.set_title(f"{machine}, T = {temperature:g}", fontsize=9)
            label(ax, "streams", "auto over no speculation")
            if ax.lines:
                ax.legend(fontsize=LEGEND)
    save(figure, folder / "never-slower.png")


def _row(one: Summary) -> list[str]:
    cell = one.cell
    return [
        cell.machine,
        cell.prompts,
        f"{cell.temperature:g}",
        str(cell.streams),
        shown(one.over_none.interval),
        number(one.after_prompts, 3),
        "-" if one.over_fixed is None else shown(one.over_fixed.interval),
        " / ".join(dict.fromkeys(one.best)) or "-",
        number(one.per_forward(AUTO)),
        number(one.nodes(AUTO), 1),
        f"{one.host_us(NONE):.0f} / {one.host_us(AUTO):.0f}",
        str(len(one.turns)),
    ]


def _entry(one: Summary) -> dict[str, Any]:
    methods = [AUTO, NONE, *fixed_methods(one.turns)]
    return one.cell._asdict() | {
        "over_none": _figures(one.over_none.interval),
        "over_none_after_prompts": round(one.after_prompts, 4),
        "over_best_fixed": None if one.over_fixed is None else _figures(one.over_fixed.interval),
        "best_fixed": one.best,
        "turns": len(one.turns),
        "identical": not one.differing,
        "load": round(max(turn[AUTO].load for turn in one.turns), 1),
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
