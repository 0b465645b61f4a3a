"""A stage leaves its draining node with all its ranks: other processes load its layers first, then take over."""

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

nodes = Nodes(sys.argv[2], head_cpus=N_RANKS + 1)
nodes.deploy_spread(sys.argv[1], tensor_parallel=N_RANKS)
second = nodes.add(N_RANKS)
nodes.until_running()
said = {"quiet": nodes.quiet(), "before": nodes.state()}

third = nodes.add(N_RANKS)
moved = lambda: nodes.state()["replacements"] == 1
said["drained"] = nodes.disturbed(lambda: nodes.drain(second), moved)
old = [one["pid"] for one in said["before"]["stages"][N_RANKS:]]
wait_until(lambda: not any(map(psutil.pid_exists, old)), "the old stage still runs")
said["its_node_lives"] = nodes.is_alive(second)  # it holds the replica's own bundle

nodes.cluster.remove_node(second)  # as its deadline does
fourth = nodes.add(N_RANKS)  # takes the replica's own bundle
moved = lambda: nodes.state()["replacements"] == 2
said["back"] = nodes.disturbed(lambda: nodes.drain(third), moved)
wait_until(lambda: not nodes.is_alive(third), "the empty node is still alive")
said["nodes"] = [node.node_id for node in (second, third, fourth)]
nodes.close()
print(json.dumps(said))
"""


@pytest.fixture(scope="module", params=[1, 2], ids="{} ranks".format)
def said(request: pytest.FixtureRequest, tiny_checkpoint: Path) -> dict[str, Any]:
    return run_script(f"N_RANKS = {request.param}\n{SCRIPT}", tiny_checkpoint) | {"n_ranks": request.param}


def test_a_stage_leaves_a_draining_node_while_it_works_and_texts_stay(said: dict[str, Any]) -> None:
    drained = said["drained"]
    assert same(drained["answers"], said["quiet"])
    n, before, after = said["n_ranks"], said["before"]["stages"], drained["state"]["stages"]
    assert before[:n] == after[:n]
    assert [one["node"] for one in before[n:]] == [said["nodes"][0]] * n
    assert [one["node"] for one in after[n:]] == [said["nodes"][1]] * n
    last = drained["state"]["last_replacement"]
    assert last["planned"]
    assert last["reasons"] == {str(number): "its node drains" for number in range(n, 2 * n)}
    assert said["its_node_lives"]


def test_a_reserved_bundle_is_given_back_once_its_stage_has_left(said: dict[str, Any]) -> None:
    back = said["back"]
    assert same(back["answers"], said["quiet"])
    n = said["n_ranks"]
    assert [one["node"] for one in back["state"]["stages"][n:]] == [said["nodes"][2]] * n
    assert back["state"]["last_replacement"]["planned"]
