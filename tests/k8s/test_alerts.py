"""Alert rules: what promtool says of them, that each is tested, and that each says what to do."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.metrics import PAGE, documented_series
from tests.support.prometheus import FOREIGN, metric_names, program
from tools.monitoring.files import RULES

TESTS = RULES.with_name("rules_test.yaml")
OF_PROMETHEUS = {"up"}
DELAYS = re.compile(r"^\d+[smh]$")


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}


@pytest.mark.parametrize("arguments", [("check", "rules", RULES), ("test", "rules", TESTS)], ids=lambda each: each[0])
def test_promtool_finds_nothing(arguments: tuple[str | Path, ...]) -> None:
    said = subprocess.run([program("promtool"), *map(str, arguments)], capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr


def test_every_alert_fires_in_a_test() -> None:
    fired = set()
    for case in yaml.safe_load(TESTS.read_text())["tests"]:
        for question in case["promql_expr_test"]:
            fired |= {re.search(r'alertname="(\w+)"', sample["labels"])[1] for sample in question["exp_samples"]}  # type: ignore[index]
    assert fired == set(ALERTS)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_expressions_parse_and_name_documented_metrics(rule: dict[str, Any]) -> None:
    recorded = {each["record"] for each in rules() if "record" in each}
    named = {name for name in metric_names(rule["expr"]) if not name.startswith(FOREIGN)}
    assert named <= documented_series() | recorded | OF_PROMETHEUS


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_how_bad_it_is_and_what_to_do(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert all(rule["annotations"].values())
    assert DELAYS.match(rule.get("for", "0s"))


def test_the_manual_lists_the_alerts() -> None:
    rows = re.findall(r"^\| `(Spectra\w+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [(name, rule["labels"]["severity"]) for name, rule in ALERTS.items()]
