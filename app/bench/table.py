"""The tables that people read, of a report; how a table is written is `app.markdown`'s."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev

from app.bench.figures import Figures, Row, Spread
from app.bench.records import COUNTS, Setting
from app.markdown import NOTHING, markdown, number

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


def tables(found: Mapping[Setting, Sequence[Row]]) -> str:
    """All tables of a report, settings apart."""
    return "\n\n".join(_setting(setting, rows) for setting, rows in found.items())


def _setting(setting: Setting, rows: Sequence[Row]) -> str:
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


def _identity(rows: Sequence[Row]) -> str:
    """Whether the methods wrote what autoregressive decoding wrote, in words."""
    wrong = [f"{row.method} ({f.compared - f.identical})" for row in rows if (f := row.total).is_identical is False]
    if wrong:
        return f"NOT identical to autoregressive decoding (outputs that differ): {', '.join(wrong)}."
    if all(row.total.is_identical is None for row in rows):
        return "There is no autoregressive decoding to compare with."
    return "Every output is identical to autoregressive decoding's."


def _overall(row: Row) -> list[str]:
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


def _repeats(f: Figures) -> str:
    """Ratio of the summed times; with several repeats their mean and standard deviation."""
    if len(f.speedup_repeats) < 2:
        return number(f.speedup_total)
    return f"{fmean(f.speedup_repeats):.2f} +- {stdev(f.speedup_repeats):.2f}"


def _by_category(rows: Sequence[Row], categories: Sequence[str], cell: Callable[[Figures], str]) -> str:
    body = [
        [row.method, *(cell(row.by_category[c]) if c in row.by_category else NOTHING for c in categories)]
        for row in rows
    ]
    return markdown(("method", *categories), body)


def _sources(row: Row) -> list[list[str]]:
    lines = []
    for name, counts in row.total.by_source.items():
        drafted, accepted = counts.get("drafted", 0), counts.get("accepted", 0)
        share = f"{accepted / drafted:.1%}" if drafted else NOTHING
        per_forward = f"{accepted / row.total.forwards:.2f}" if row.total.forwards else NOTHING
        lines.append([row.method, name, *(str(counts.get(what, 0)) for what in COUNTS), share, per_forward])
    return lines


def _median(spread: Spread | None) -> str:
    return number(None if spread is None else spread.median)
