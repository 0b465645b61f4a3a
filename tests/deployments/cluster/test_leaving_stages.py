"""Stages whose node is told to end: other processes load their layers first, then streams go on with these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.deployments.cluster.ray_scripts import run_script, same

pytestmark = pytest.mark.matrix

SCRIPT = """
import json, sys
import psutil
from tests.deployments.cluster.ray_nodes import Nodes
from tests.support.waiting import wait_until

nodes = Nodes(sys.argv[2])
nodes.deploy_spread(sys.argv[1])
second = nodes.add()
nodes.until_running()
said = {"quiet": nodes.quiet(), "before": nodes.state()}

third = nodes.add()
moved = lambda: nodes.state()["replacements"] == 1
said["drained"] = nodes.disturbed(lambda: nodes.drain(second), moved)
pid = said["before"]["stages"][1]["pid"]
wait_until(lambda: not psutil.pid_exists(pid), "the old stage still runs")
said["its_node_lives"] = nodes.is_alive(second)  # it holds the replica's own bundle

nodes.cluster.remove_node(second)  # as its deadline does
fourth = nodes.add()  # takes the replica's own bundle
moved = lambda: nodes.state()["replacements"] == 2
said["back"] = nodes.disturbed(lambda: nodes.drain(third), moved)
wait_until(lambda: not nodes.is_alive(third), "the empty node is still alive")
said["nodes"] = [node.node_id for node in (second, third, fourth)]
nodes.close()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tiny_checkpoint: Path) -> dict[str, Any]:
    return run_script(SCRIPT, tiny_checkpoint)


def test_a_stage_leaves_a_draining_node_while_it_works_and_texts_stay(said: dict[str, Any]) -> None:
    drained = said["drained"]
    assert same(drained["answers"], said["quiet"])
    before, after = said["before"]["stages"], drained["state"]["stages"]
    assert before[0] == after[0]
    assert (before[1]["node"], after[1]["node"]) == (said["nodes"][0], said["nodes"][1])
    last = drained["state"]["last_replacement"]
    assert last["planned"]
    assert last["reasons"] == {"1": "its node drains"}
    assert said["its_node_lives"]


def test_a_reserved_bundle_is_given_back_once_its_stage_has_left(said: dict[str, Any]) -> None:
    back = said["back"]
    assert same(back["answers"], said["quiet"])
    assert back["state"]["stages"][1]["node"] == said["nodes"][2]
    assert back["state"]["last_replacement"]["planned"]
