"""A Grafana dashboard from titles and expressions; nothing else of it is worth editing by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

COLUMNS, WIDTH, HEIGHT = 3, 8, 8  # panels in a line; of a panel, in Grafana's grid of 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA = 39  # Grafana 11; later ones read it
TAG = "spectra-serve"
LINK = {  # from each board to the others, with what is chosen
    "type": "dashboards",
    "tags": [TAG],
    "title": "Boards",
    "asDropdown": True,
    "includeVars": True,
    "keepTime": True,
}


@dataclass(frozen=True, slots=True)
class Query:
    """One expression, and what the legend calls its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph over time.

    Args:
        title: says what is shown.
        unit: Grafana's name of it.
        queries: its lines.
        text: what a reader should know of it.
        stacked: the lines add up.
    """

    title: str
    unit: str
    queries: tuple[Query, ...]
    text: str = ""
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard.

    Args:
        name: of the file, and Grafana's identity of it.
        title: for people.
        rows: titles, and the panels under each.
    """

    name: str
    title: str
    rows: dict[str, tuple[Panel, ...]] = field(default_factory=dict)

    @property
    def panels(self) -> list[Panel]:
        """All of them, in order."""
        return [panel for panels in self.rows.values() for panel in panels]


def dashboard(board: Board) -> dict[str, Any]:
    """What Grafana imports."""
    made: list[dict[str, Any]] = []
    y = 0
    for title, panels in board.rows.items():
        place = {"h": 1, "w": 24, "x": 0, "y": y}
        made.append({"id": len(made) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": place})
        y += 1
        for number, panel in enumerate(panels):
            line, column = divmod(number, COLUMNS)
            place = {"h": HEIGHT, "w": WIDTH, "x": column * WIDTH, "y": y + line * HEIGHT}
            made.append({"id": len(made) + 1, **_panel(panel), "gridPos": place})
        y += -(-len(panels) // COLUMNS) * HEIGHT
    return {
        "uid": f"spectra-{board.name}",
        "title": f"{TAG} / {board.title}",
        "tags": [TAG],
        "schemaVersion": SCHEMA,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "links": [LINK],
        "panels": made,
    }


def _panel(panel: Panel) -> dict[str, Any]:
    stacking = {"mode": "normal" if panel.stacked else "none"}
    custom = {"fillOpacity": 30 if panel.stacked else 5, "showPoints": "never", "stacking": stacking}
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {
            "tooltip": {"mode": "multi", "sort": "desc"},
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        },
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query.expr, "legendFormat": query.legend or "__auto"}
            for number, query in enumerate(panel.queries)
        ],
    }


def _variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "model_name",
            "label": "Model",
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": "label_values(spectra:pipelines_up, model_name)", "refId": "models"},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        },
    ]
