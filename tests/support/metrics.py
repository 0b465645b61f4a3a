"""Metrics as Prometheus reads them, and as docs/operations.md lists them."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
NAME = re.compile(r"`((?:vllm|spectra):\w+)`")


def documented() -> set[str]:
    """Names in the first column of the page's tables."""
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return {name for cell in rows for name in NAME.findall(cell)}


def exposed(text: str) -> set[str]:
    """Names of all families; those of counters with the ending that their series have."""
    families = text_string_to_metric_families(text)
    return {family.name + ("_total" if family.type == "counter" else "") for family in families}


def values(text: str, name: str, **labels: str) -> list[float]:
    """Of all series of that name with these labels."""
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return [s.value for s in samples if s.name == name and labels.items() <= s.labels.items()]
