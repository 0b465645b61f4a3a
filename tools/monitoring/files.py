"""The files that are made, and what is in them."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tools.monitoring.engine_boards import PIPELINE, RETRIEVAL, SPECULATION
from tools.monitoring.grafana import dashboard
from tools.monitoring.service_boards import SERVICE, TENANTS

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "k8s" / "alerts" / "rules.yaml"
BOARDS = (SERVICE, SPECULATION, PIPELINE, RETRIEVAL, TENANTS)
HEADER = "# Made of k8s/alerts/rules.yaml by `python -m tools.monitoring`.\n"


def made() -> dict[str, str]:
    """Paths from the repository's root, and contents."""
    files = {f"k8s/dashboards/{board.name}.json": _json(dashboard(board)) for board in BOARDS}
    rules = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "spectra"},
        "spec": yaml.safe_load(RULES.read_text(encoding="utf-8")),
    }
    text = yaml.safe_dump(rules, sort_keys=False, width=120, allow_unicode=True)
    return files | {"k8s/components/monitoring/prometheusrule.yaml": HEADER + text}


def _json(document: object) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
