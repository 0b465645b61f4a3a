"""A process that waits without weights becomes the stage that is lost, and another one waits after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.deployments.cluster.ray_scripts import run_script, same

pytestmark = pytest.mark.matrix

SCRIPT = """
import json, os, signal, sys
import psutil
from tests.deployments.cluster.ray_nodes import Nodes, named
from tests.support.waiting import wait_until

nodes = Nodes(sys.argv[2])
nodes.deploy_spread(sys.argv[1], standby_stages=1)
second = nodes.add()
nodes.until_running()
third = nodes.add()
ids = {"second": second.node_id, "third": third.node_id}


def standby(other_than=0):
    return wait_until(lambda: [
        one["pid"] for one in nodes.state()["standbys"] if one["ready"] and one["pid"] != other_than
    ])[0]


def after(strike, n):
    found = nodes.disturbed(strike, lambda: nodes.state()["replacements"] == n)
    return found | {"standby": standby(found["state"]["stages"][1]["pid"])}


def stage():
    return nodes.state()["stages"][1]["pid"]


said = {"quiet": nodes.quiet(), "standby": standby(), "before": nodes.state(), "nodes": ids}
said["killed"] = after(lambda: os.kill(stage(), signal.SIGKILL), 1)

waiting, generation = standby(), nodes.state()["generation"]
os.kill(waiting, signal.SIGKILL)
said["standby_killed"] = {"was": waiting, "is": standby(waiting), "same": nodes.state()["generation"] == generation}


def kill_both():
    # stopped, so that it is still about to load when it dies
    waiting = standby()
    os.kill(waiting, signal.SIGSTOP)
    os.kill(stage(), signal.SIGKILL)
    wait_until(lambda: waiting not in [one["pid"] for one in nodes.state()["standbys"]], "no standby is taken")
    os.kill(waiting, signal.SIGKILL)
    said["taken"] = waiting


said["both_killed"] = after(kill_both, 2)

nodes.add()  # for what the lost node leaves behind
state = nodes.state()
victim = second if state["stages"][1]["node"] == second.node_id else third
wait_until(lambda: nodes.state()["standbys"][0]["node"] != victim.node_id, "the standby is not on the other node")
said["elsewhere"] = nodes.state()["standbys"][0]["pid"]
said["node_lost"] = after(lambda: victim.kill_raylet(check_alive=False), 3)

(target,) = named("ray::ServeReplica:spectra:Target")
left = [stage["pid"] for stage in nodes.state()["stages"]] + [standby()]
target.kill()
wait_until(lambda: not any(psutil.pid_exists(pid) for pid in left), "some processes still run")
wait_until(lambda: nodes.handle.generate.remote({"prompt": "x", "max_tokens": 1}).result(), "no new pipeline")
wait_until(lambda: standby())
known = [one["pid"] for one in nodes.state()["stages"] + nodes.state()["standbys"]]
said["orphans"] = [one.pid for one in named("ray::StageActor") if one.pid not in known]
nodes.close()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tiny_checkpoint: Path) -> dict[str, Any]:
    return run_script(SCRIPT, tiny_checkpoint)


def test_a_standby_on_its_own_node_becomes_the_killed_stage_and_another_waits(said: dict[str, Any]) -> None:
    before, killed = said["before"], said["killed"]
    assert before["standbys"][0]["node"] not in {stage["node"] for stage in before["stages"]}
    assert same(killed["answers"], said["quiet"])
    assert killed["state"]["stages"][1]["pid"] == said["standby"]
    assert killed["state"]["stages"][0] == before["stages"][0]
    last = killed["state"]["last_replacement"]
    assert (last["standbys"], last["planned"], last["error"]) == (1, False, "")
    assert killed["standby"] not in (said["standby"], before["stages"][1]["pid"])


def test_a_standby_that_dies_waiting_or_taking_over_is_replaced(said: dict[str, Any]) -> None:
    alone, both = said["standby_killed"], said["both_killed"]
    assert alone["same"]
    assert alone["is"] != alone["was"]
    assert same(both["answers"], said["quiet"])
    assert both["state"]["stages"][1]["pid"] != said["taken"]


def test_a_standby_elsewhere_replaces_the_stage_of_a_lost_node_and_none_outlives_its_pipeline(
    said: dict[str, Any],
) -> None:
    lost = said["node_lost"]
    assert same(lost["answers"], said["quiet"])
    assert lost["state"]["stages"][1]["pid"] == said["elsewhere"]
    assert lost["standby"] != said["elsewhere"]
    assert said["orphans"] == []
