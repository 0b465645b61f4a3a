"""The report of a bench, made from records alone: tables for people, plots, and the JSON document for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from msgspec.structs import asdict

from app.bench.figures import MethodFigures, MethodRow, compare, step_curve
from app.bench.plots import plots
from app.bench.records import COUNTS, BenchSetting, TurnRecord
from app.reporting.plotting import can_plot
from app.reporting.report import NOTHING, markdown, number, write_document
from app.reporting.summaries import Quartiles

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


def publish(records: Sequence[TurnRecord], facts: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Write ``tables.md``, the plots and ``bench.json`` to ``folder``, print the tables, return the document.

    The caller prints the document (``app.reporting.report.as_line``) as its last line on stdout.

    Args:
        records: of every method and setting; at least one.
        facts: further keys of the document, such as ``model`` and ``prompts``; ``notes``, if present, is a list of
            sentences that stand above the tables too.
        folder: made if missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = compare(records)
    shown = "\n\n".join([*facts.get("notes", ()), *few_turns(records), tables(found)])
    print(shown, flush=True)
    (folder / "tables.md").write_text(shown + "\n", encoding="utf-8")
    drawn = plots(found, records, folder) if can_plot() else []
    result = {**document(found, records), **facts, "plots": [str(path) for path in drawn]}
    write_document(result, folder / "bench.json")
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
    runs = [
        {
            "temperature": setting.temperature,
            "state": setting.state,
            "methods": {row.method: _method(row) for row in rows},
        }
        for setting, rows in found.items()
    ]
    curve = [
        {"nodes": nodes, "seconds": round(spread.median, 6), "quartiles": [round(spread.low, 6), round(spread.high, 6)]}
        for nodes, spread in step_curve(records).items()
    ]
    checks = [row.total.is_identical for rows in found.values() for row in rows]
    return {
        "methods": runs[0]["methods"] if runs else {},
        "runs": runs,
        "identical_to_autoregressive": None if all(check is None for check in checks) else False not in checks,
        "step_time": curve,
    }


def _method(row: MethodRow) -> dict[str, Any]:
    return {
        **_fields(row.total),
        "by_source": row.total.by_source,
        "by_category": {name: _fields(some) for name, some in row.by_category.items()},
    }


def _fields(f: MethodFigures) -> dict[str, Any]:
    return {
        "tokens_per_forward": _rounded(f.tokens_per_forward),
        "speedup": None if f.speedup is None else _rounded(f.speedup.median),
        "mic_tp": _rounded(f.mic_tp),
        "mac_tp": _rounded(f.mac_tp),
        "identical_to_autoregressive": f.is_identical,
        "identical": f.identical,
        "compared": f.compared,
        "outputs": f.turns,
        "tokens": f.tokens,
        "target_forwards": f.forwards,
        "pre_loop_tokens_per_forward": _rounded(f.pre_loop),
        "looping": _rounded(f.looping),
        "tokens_per_forward_quartiles": _quartiles(f.tokens_per_forward_quartiles),
        "speedup_quartiles": _quartiles(f.speedup),
        "speedup_total": _rounded(f.speedup_total),
        "speedup_repeats": [_rounded(value) for value in f.speedup_repeats],
        "outside_target": _rounded(f.outside_target),
        "drafting_failures": f.failures,
    }


def _quartiles(spread: Quartiles | None) -> dict[str, Any] | None:
    return None if spread is None else {name: _rounded(value) for name, value in asdict(spread).items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def tables(found: Mapping[BenchSetting, Sequence[MethodRow]]) -> str:
    """All tables, one section per setting."""
    return "\n\n".join(_setting(setting, rows) for setting, rows in found.items())


def _setting(setting: BenchSetting, rows: Sequence[MethodRow]) -> str:
    first = rows[0].total
    parts = [
        f"## {setting.label}",
        f"{first.turns} outputs of each method, {first.looping:.0%} of them loop. {_identity(rows)}",
        *(f"{row.method} FAILED {row.total.failures} times: see the log." for row in rows if row.total.failures),
        markdown(COLUMNS, [_overall(row) for row in rows]),
    ]
    categories = list(dict.fromkeys(name for row in rows for name in row.by_category))
    if len(categories) > 1:
        parts += ["### tau by category", _by_category(rows, categories, lambda f: number(f.tokens_per_forward))]
        parts += ["### tau pre-loop by category", _by_category(rows, categories, lambda f: number(f.pre_loop))]
        if first.speedup is not None:
            parts += ["### median speed-up by category", _by_category(rows, categories, lambda f: _median(f.speedup))]
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
        number(f.pre_loop),
        NOTHING if f.speedup is None else f"{f.speedup.median:.2f} ({f.speedup.low:.2f} - {f.speedup.high:.2f})",
        _repeats(f),
        number(f.mic_tp, 1),
        number(f.mac_tp, 1),
        NOTHING if f.outside_target is None else f"{f.outside_target:.1%}",
        identical,
    ]


def _repeats(f: MethodFigures) -> str:
    """Ratio of the summed times; with several repeats their mean and standard deviation."""
    if len(f.speedup_repeats) < 2:
        return number(f.speedup_total)
    return f"{fmean(f.speedup_repeats):.2f} +- {stdev(f.speedup_repeats):.2f}"


def _by_category(rows: Sequence[MethodRow], categories: Sequence[str], cell: Callable[[MethodFigures], str]) -> str:
    body = [
        [row.method, *(cell(row.by_category[c]) if c in row.by_category else NOTHING for c in categories)]
        for row in rows
    ]
    return markdown(("method", *categories), body)


def _sources(row: MethodRow) -> list[list[str]]:
    lines = []
    for name, counts in row.total.by_source.items():
        drafted, accepted = counts.get("drafted", 0), counts.get("accepted", 0)
        share = f"{accepted / drafted:.1%}" if drafted else NOTHING
        per_forward = f"{accepted / row.total.forwards:.2f}" if row.total.forwards else NOTHING
        lines.append([row.method, name, *(str(counts.get(what, 0)) for what in COUNTS), share, per_forward])
    return lines


def _median(spread: Quartiles | None) -> str:
    return number(None if spread is None else spread.median)
