"""Dashboards: current, loadable, and of metrics that the manual lists, which are those of a real scrape."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tests.support.metrics import documented_series
from tests.support.prometheus import FOREIGN, metric_names, with_variables
from tools.monitoring.files import BOARDS, ROOT, made
from tools.monitoring.grafana import COLUMNS, Board, dashboard

FOLDER = ROOT / "k8s" / "dashboards"
BY_NAME = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)


def expressions(board: Board) -> list[str]:
    """As Grafana asks them."""
    return [with_variables(query.expr) for panel in board.panels for query in panel.queries]


@pytest.mark.parametrize("path", made())
def test_made_files_are_current(path: str) -> None:
    assert (ROOT / path).read_text() == made()[path], "run `python -m tools.monitoring`"


def test_all_boards_become_config_maps() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["configMapGenerator"]
    assert sorted(name for each in listed for name in each["files"]) == sorted(
        path.name for path in FOLDER.glob("*.json")
    )


@BY_NAME
def test_expressions_parse_and_name_documented_metrics(board: Board) -> None:
    named = {name for expression in expressions(board) for name in metric_names(expression)}
    assert named
    assert {name for name in named if not name.startswith(FOREIGN)} <= documented_series()


@BY_NAME
def test_a_board_asks_for_source_and_model_and_leaves_no_other_variable_open(board: Board) -> None:
    made_of = dashboard(board)
    known = [variable["name"] for variable in made_of["templating"]["list"]]
    assert known == ["datasource", "model_name"]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(made_of["panels"])))
    assert used <= {*known, "__rate_interval"}


@BY_NAME
def test_panels_have_places_and_names_of_their_own(board: Board) -> None:
    panels: list[dict[str, Any]] = dashboard(board)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < COLUMNS * 8
