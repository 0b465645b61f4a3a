"""The JSON document that ends a bench: for tools, with the names of the contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from app.bench.figures import Figures, Row, Spread, step_curve
from app.bench.records import Record, Setting


def document(found: Mapping[Setting, Sequence[Row]], records: Iterable[Record]) -> dict[str, Any]:
    """Figures of every setting in ``runs``; ``methods`` are those of the first one.

    ``identical_to_autoregressive`` is None where there was nothing to compare; rates are tokens per second.
    """
    records = list(records)
    runs = [
        {
            "temperature": setting.temperature,
            "state": "warm" if setting.warm else "cold",
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


def _method(row: Row) -> dict[str, Any]:
    return {
        **_figures(row.total),
        "by_source": row.total.by_source,
        "by_category": {name: _figures(some) for name, some in row.by_category.items()},
    }


def _figures(f: Figures) -> dict[str, Any]:
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
        "tokens_per_forward_quartiles": _quartiles(f.tokens_per_forward_spread),
        "speedup_quartiles": _quartiles(f.speedup),
        "speedup_total": _rounded(f.speedup_total),
        "speedup_repeats": [_rounded(value) for value in f.speedup_repeats],
        "outside_target": _rounded(f.outside_target),
        "drafting_failures": f.failures,
    }


def _quartiles(spread: Spread | None) -> dict[str, Any] | None:
    return None if spread is None else {name: _rounded(value) for name, value in asdict(spread).items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
