"""Pieces of PromQL that panels share."""

from __future__ import annotations

from tools.monitoring.grafana import Query

WINDOW = "$__rate_interval"
MODEL = 'model_name=~"$model_name"'
V1 = 'route=~"/v1/.+"'  # without probes and scrapes
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def gauge(name: str, by: str = "model_name") -> str:
    """The sum of a gauge."""
    return f"sum by ({by}) ({name}{{{MODEL}}})"


def rate(name: str, by: str = "", match: str = MODEL) -> str:
    """What a counter grows by in a second."""
    grown = f"rate({name}{{{match}}}[{WINDOW}])"
    return f"sum by ({by}) ({grown})" if by else f"sum({grown})"


def ratio(part: str, whole: str) -> str:
    """One expression divided by another with the same labels."""
    return f"{part} / {whole}"


def mean(name: str, by: str = "") -> str:
    """Of what a histogram has observed."""
    return ratio(rate(f"{name}_sum", by), rate(f"{name}_count", by))


def quantiles(name: str, match: str = MODEL) -> tuple[Query, ...]:
    """Three lines of a histogram."""
    buckets = rate(f"{name}_bucket", "le", match)
    return tuple(Query(f"histogram_quantile({number}, {buckets})", text) for text, number in QUANTILES.items())
