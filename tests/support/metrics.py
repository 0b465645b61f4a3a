"""Metrics as Prometheus parses them, and as docs/reference/metrics.md lists them."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"
RETRIEVAL_HEADING = "\n## With a retrieval store\n"
NAME = re.compile(r"`((?:vllm|spectra):\w+)(?:\{\w+\})?`")


def documented(kind: str = "") -> set[str]:
    """Return the names in the first column of the tables of every server; with ``kind``, those with that unit."""
    rows = [line.split("|")[1:] for line in PAGE.read_text().split(RETRIEVAL_HEADING)[0].splitlines()]
    return {name for row in rows if len(row) > 3 and kind in row[2] for name in NAME.findall(row[0])}


def documented_of_retrieval() -> set[str]:
    """Return the names that a server with a retrieval store has in addition."""
    return set(NAME.findall(PAGE.read_text().split(RETRIEVAL_HEADING)[1]))


def documented_series() -> set[str]:
    """Return the names of the series of all documented metrics."""
    parts = {f"{name}_{part}" for name in documented(kind="histogram") for part in ("bucket", "sum", "count")}
    return documented() | documented_of_retrieval() | parts


def exposed(text: str) -> set[str]:
    """Return the names of all families, counters with ``_total``."""
    families = text_string_to_metric_families(text)
    return {family.name + ("_total" if family.type == "counter" else "") for family in families}


def values(text: str, name: str, **labels: str) -> list[float]:
    """Return the values of all series of that name with these labels."""
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return [s.value for s in samples if s.name == name and labels.items() <= s.labels.items()]
