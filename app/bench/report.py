"""The report of a bench, made from records alone: tables for people, plots, and the JSON document for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import msgspec

from app.bench.figures import MethodFigures, MethodRow, compare, step_curve
from app.bench.plots import plots
from app.bench.records import COUNTS, BenchSetting, TurnRecord
from app.reporting.plotting import can_plot
from app.reporting.report import NOTHING, as_line, markdown, number, percent, write_report
from app.reporting.summaries import ratio, rounded

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


def publish(records: Sequence[TurnRecord], facts: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Print tables and document; write ``tables.md``, ``bench.json`` and plots to ``folder``; returns the document.

    Args:
        records: of every method and setting; at least one.
        facts: further keys of the document, such as ``model`` and ``prompts``; the sentences of ``notes``, if present,
            are printed above the tables too.
        folder: made if missing; None: no files are written.
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
    categories = list(dict.fromkeys(name for row in rows for name in row.by_category))
    if len(categories) > 1:
        parts += ["### tau by category", _by_category(rows, categories, "tokens_per_forward")]
        parts += ["### tau pre-loop by category", _by_category(rows, categories, "pre_loop_tokens_per_forward")]
        if first.speedup is not None:
            parts += ["### median speed-up by category", _by_category(rows, categories, "speedup")]
    sources = [line for row in rows for line in _sources(row)]
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


def _sources(row: MethodRow) -> list[list[str]]:
    lines = []
    for name, counts in row.total.by_source.items():
        drafted, accepted = counts.get("drafted", 0), counts.get("accepted", 0)
        shares = percent(ratio(accepted, drafted)), number(ratio(accepted, row.total.target_forwards))
        lines.append([row.method, name, *(str(counts.get(what, 0)) for what in COUNTS), *shares])
    return lines
