"""Dashboards and alert rules use metrics that the manual lists; promtool accepts the rules."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest
import yaml

from tests.k8s.prometheus import FOREIGN, board_expressions, metric_names, program
from tests.support.metrics import PAGE, documented_series
from tools.monitoring.files import BOARDS, RULES
from tools.monitoring.grafana import dashboard

TESTS = RULES.with_name("rules_test.yaml")
EVERY_RULE: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in EVERY_RULE if "alert" in rule}
RECORDED = {rule["record"] for rule in EVERY_RULE if "record" in rule}


def test_expressions_parse_and_name_documented_metrics() -> None:
    for expression in (*board_expressions(), *(rule["expr"] for rule in EVERY_RULE)):
        named = {name for name in metric_names(expression) if not name.startswith(FOREIGN)}
        assert named <= documented_series() | RECORDED | {"up"}, expression


def test_boards_leave_no_variable_open_but_source_and_model() -> None:
    for board in BOARDS:
        made_of = dashboard(board)
        assert [variable["name"] for variable in made_of["templating"]["list"]] == ["datasource", "model_name"]
        used = set(re.findall(r"\$\{?(\w+)", json.dumps(made_of["panels"])))
        assert used <= {"datasource", "model_name", "__rate_interval"}
        assert len({panel["id"] for panel in made_of["panels"]}) == len(made_of["panels"])


def test_every_alert_has_a_severity_a_runbook_a_row_in_the_manual_and_a_test() -> None:
    for rule in ALERTS.values():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        assert all(rule["annotations"].values())
    rows = re.findall(r"^\| `(Spectra\w+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [(name, rule["labels"]["severity"]) for name, rule in ALERTS.items()]
    assert set(re.findall(r'alertname="(\w+)"', TESTS.read_text())) == set(ALERTS)


@pytest.mark.matrix
@pytest.mark.parametrize("arguments", [("check", "rules", RULES), ("test", "rules", TESTS)], ids=lambda each: each[0])
def test_promtool_accepts_the_rules_and_their_tests(arguments: tuple[object, ...]) -> None:
    done = subprocess.run([program("promtool"), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
