"""The report of a bench, made from records alone: tables for people, plots, and the JSON document for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import msgspec

from app.bench.figures import MethodFigures, MethodRow, compare, step_curve
from app.bench.records import COUNTS, BenchSetting, TurnRecord
from app.reporting.plotting import LABEL, LEGEND, can_plot, colour, grid, headroom, label, save
from app.reporting.report import NOTHING, as_line, markdown, number, percent, write_report
from app.reporting.summaries import ratio, rounded
from engine.scheduling.drafting import AUTOREGRESSIVE

COLUMNS = (
    "method",
    "tau",
    "tau pre-loop",
    "speed-up: median (quartiles)",
    "of all time",
    "Mic-TP",
    "Mac-TP",
    "outside target",
    "identical",
)
FEW_TURNS = 10  # of a category; quartiles of fewer are single turns
Report = Mapping[BenchSetting, Sequence[MethodRow]]


def publish(records: Sequence[TurnRecord], facts: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Print tables and document; write ``tables.md``, ``bench.json`` and plots to ``folder``; returns the document.

    Args:
        records: of every method and setting; at least one.
        facts: further keys of the document; the sentences of ``notes`` are printed above the tables too.
    """
    found = compare(records)
    shown = "\n\n".join([*facts.get("notes", ()), *few_turns(records), tables(found)])
    print(shown, flush=True)
    drawn = plots(found, records, folder) if folder is not None and can_plot() else []
    result = {**document(found, records), **facts, "plots": [str(path) for path in drawn]}
    if folder is not None:
        write_report(folder, "bench.json", result, shown)
    print(as_line(result), flush=True)
    return result


def few_turns(records: Iterable[TurnRecord]) -> list[str]:
    """A warning, in one sentence, if a category has fewer than ``FEW_TURNS`` turns; repeats add none."""
    turns = Counter(category for category, _, _ in {(r.category, r.index, r.turn) for r in records})
    few = [f"{category or 'all prompts'} ({n})" for category, n in sorted(turns.items()) if n < FEW_TURNS]
    if not few:
        return []
    return [f"FEW PROMPTS: under {FEW_TURNS} turns in {', '.join(few)}; medians of so few turns say little."]


def document(found: Mapping[BenchSetting, Sequence[MethodRow]], records: Iterable[TurnRecord]) -> dict[str, Any]:
    """Figures of every setting in ``runs``; ``methods`` are those of the first one.

    ``identical_to_autoregressive`` is None if no output could be compared; rates are tokens per second.
    """
    runs: list[dict[str, Any]] = [
        {
            "temperature": setting.temperature,
            "state": setting.state,
            "methods": {
                row.method: _fields(row.total) | {"by_category": {c: _fields(f) for c, f in row.by_category.items()}}
                for row in rows
            },
        }
        for setting, rows in found.items()
    ]
    curve = [
        {"nodes": nodes, "seconds": spread.median, "quartiles": [spread.low, spread.high]}
        for nodes, spread in step_curve(records).items()
    ]
    checks = [row.total.is_identical for rows in found.values() for row in rows]
    return {
        "methods": rounded(runs[0]["methods"] if runs else {}),
        "runs": rounded(runs),
        "identical_to_autoregressive": None if all(check is None for check in checks) else False not in checks,
        "step_time": rounded(curve, 6),
    }


def _fields(f: MethodFigures) -> dict[str, Any]:
    return {**msgspec.to_builtins(f), "speedup": f.speedup, "identical_to_autoregressive": f.is_identical}


def tables(found: Mapping[BenchSetting, Sequence[MethodRow]]) -> str:
    return "\n\n".join(_setting(setting, rows) for setting, rows in found.items())


def _setting(setting: BenchSetting, rows: Sequence[MethodRow]) -> str:
    first = rows[0].total
    parts = [
        f"## {setting.label}",
        f"{first.outputs} outputs of each method, {first.looping:.0%} of them loop. {_identity(rows)}",
        *(f"{row.method} FAILED {n} times: see the log." for row in rows if (n := row.total.drafting_failures)),
        markdown(COLUMNS, [_overall(row) for row in rows]),
    ]
    if categories := _categories(rows):
        parts += ["### tau by category", _by_category(rows, categories, "tokens_per_forward")]
        parts += ["### tau pre-loop by category", _by_category(rows, categories, "pre_loop_tokens_per_forward")]
        if first.speedup is not None:
            parts += ["### median speed-up by category", _by_category(rows, categories, "speedup")]
    sources = [line for row in rows for line in _source_cells(row)]
    if sources:
        head = ("method", "source", *(name.replace("_", " ") for name in COUNTS), "of drafted", "per forward")
        parts += ["### tokens by source", markdown(head, sources, 2)]
    return "\n\n".join(parts)


def _identity(rows: Sequence[MethodRow]) -> str:
    """Whether the methods wrote the same outputs as autoregressive decoding, in words."""
    wrong = [f"{row.method} ({f.compared - f.identical})" for row in rows if (f := row.total).is_identical is False]
    if wrong:
        return f"NOT identical to autoregressive decoding (outputs that differ): {', '.join(wrong)}."
    if all(row.total.is_identical is None for row in rows):
        return "There is no autoregressive decoding to compare with."
    return "Every output is identical to autoregressive decoding's."


def _overall(row: MethodRow) -> list[str]:
    f = row.total
    identical = NOTHING if f.is_identical is None else f"{f.identical}/{f.compared}"
    return [
        row.method,
        number(f.tokens_per_forward),
        number(f.pre_loop_tokens_per_forward),
        NOTHING if (q := f.speedup_quartiles) is None else f"{q.median:.2f} ({q.low:.2f} - {q.high:.2f})",
        f"{fmean(times):.2f} +- {stdev(times):.2f}" if len(times := f.speedup_repeats) > 1 else number(f.speedup_total),
        number(f.mic_tp, 1),
        number(f.mac_tp, 1),
        percent(f.outside_target),
        identical,
    ]


def _by_category(rows: Sequence[MethodRow], categories: Sequence[str], name: str) -> str:
    return markdown(
        ("method", *categories),
        [[row.method, *(number(getattr(row.by_category.get(c), name, None)) for c in categories)] for row in rows],
    )


def _source_cells(row: MethodRow) -> list[list[str]]:
    lines = []
    for name, counts in row.total.by_source.items():
        drafted, accepted = counts.get("drafted", 0), counts.get("accepted", 0)
        shares = percent(ratio(accepted, drafted)), number(ratio(accepted, row.total.target_forwards))
        lines.append([row.method, name, *(str(counts.get(what, 0)) for what in COUNTS), *shares])
    return lines


def plots(found: Report, records: Sequence[TurnRecord], folder: Path) -> list[Path]:
    """Draw what the records allow (without times: acceptance only); returns the files.

    ``tau.png``, ``speedup.png``: by method and category. ``sources.png``: accepted tokens per forward by source.
    ``step_time.png``: seconds of a target step against its nodes.
    """
    every = [row for rows in found.values() for row in rows]
    n_bars = max(len(rows) * (1 + len(_categories(rows))) for rows in found.values())
    drawn = [save(_figure(found, n_bars, "tau, tokens per forward", _draw_acceptance), folder / "tau.png")]
    if names := list(dict.fromkeys(name for row in every for name in row.total.by_source)):
        n_rows = max(len(rows) for rows in found.values())
        figure = _figure(found, n_rows, "accepted tokens per forward", partial(_draw_sources, names))
        drawn.append(save(figure, folder / "sources.png"))
    if any(row.total.speedup is not None for row in every):
        drawn.append(
            save(_figure(found, n_bars, "speed-up, median and quartiles", _draw_speed), folder / "speedup.png")
        )
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


def _draw_acceptance(ax: Any, rows: Sequence[MethodRow]) -> None:
    bars = _bars(ax, rows, lambda f: f.tokens_per_forward)
    pre_loop = [(x, f.pre_loop_tokens_per_forward) for x, f in bars if f.pre_loop_tokens_per_forward is not None]
    if pre_loop:
        ax.plot(*zip(*pre_loop, strict=True), "k_", markersize=8, label="before an output loops")


def _draw_speed(ax: Any, rows: Sequence[MethodRow]) -> None:
    for x, f in _bars(ax, rows, lambda f: f.speedup):
        if f.speedup_quartiles is not None:
            ax.vlines(x, f.speedup_quartiles.low, f.speedup_quartiles.high, color="black", linewidth=0.8)
    ax.axhline(1, color="black", linewidth=0.8, linestyle=":")


def _draw_sources(names: Sequence[str], ax: Any, every: Sequence[MethodRow]) -> None:
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
    ax.set_xticks(range(1 + len(categories)), ["all", *categories], rotation=20, ha="right")
    return bars
