"""Stages on different Ray nodes: several raylets on this machine, one of which is killed with all it runs. They ask for
a token, and what the stages say to each other goes over TCP in TLS."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest

from app.cli import main
from tests.deployments.cluster.ray_scripts import run_script, same

pytestmark = pytest.mark.cluster

SCRIPT = '''
import json, os, signal, subprocess, sys
from tests.deployments.cluster.ray_nodes import Nodes, named

nodes = Nodes(sys.argv[2])
nodes.deploy_spread(sys.argv[1])
second = nodes.add()
nodes.until_running()
nodes.add()  # for what the second one loses


def places():
    return nodes.state()["stages"]


def disturbed(strike, n):
    return nodes.disturbed(strike, lambda: nodes.state()["replacements"] == n)


JOIN = """
import sys
from app.config.serve import ServeConfig
from app.serving.server import Server
from engine.errors import ConfigError

server = Server(ServeConfig(), "127.0.0.1", 8000, sys.argv[1])
try:
    server._set_environment()
    import ray  # reads the environment
    server._start_ray()
    print(ray.is_initialized())
except ConfigError as error:
    print(error)
ray.shutdown()  # and no stop of the server, which would take the application down
"""


def join(**environment):
    given = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"} | environment
    command = [sys.executable, "-c", JOIN, nodes.cluster.address]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, env=given).stdout.strip()


said = {"joined": [join(), join(RAY_AUTH_TOKEN="0" * 64)]}
said |= {"quiet": nodes.quiet(), "before": nodes.state()}
here, there = (stage["node"] for stage in places())
own = nodes.target.endpoints.remote(here).result()
said["addresses"] = [own.first, own.last, nodes.target.endpoints.remote(there).result().last]
said["stopped"] = disturbed(lambda: os.kill(places()[1]["pid"], signal.SIGSTOP), 1)
said["node_lost"] = disturbed(lambda: second.kill_raylet(check_alive=False), 2)
known = {stage["pid"] for stage in places()}
said["orphans"] = [p.pid for p in named("ray::StageActor") if p.pid not in known]
nodes.close()
print(json.dumps(said))
'''


@pytest.fixture(scope="module")
def said(tiny_checkpoint: Path) -> dict[str, Any]:
    return run_script(SCRIPT, tiny_checkpoint, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))


def test_stages_on_two_nodes_write_what_one_process_writes_over_the_right_links(
    said: dict[str, Any], tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--max-tokens", "300", "--temperature", "0.8", "--seed", "3", "--raw", "--json"]
    capsys.readouterr()
    main(["generate", "--model", str(tiny_checkpoint), "--prompt", "Snow falls on", *flags])
    ids = json.loads(capsys.readouterr().out)["token_ids"]
    assert said["quiet"][: len(ids)] == ids
    assert len({stage["node"] for stage in said["before"]["stages"]}) == 2
    assert [address.partition(":")[0] for address in said["addresses"]] == ["unix", "tcp", "unix"]


def test_a_stopped_stage_and_a_lost_node_are_replaced_and_no_text_changes(said: dict[str, Any]) -> None:
    before, stopped, lost = (said[when] for when in ("before", "stopped", "node_lost"))
    assert same(stopped["answers"], said["quiet"])
    assert same(lost["answers"], said["quiet"])
    (first, second), (first_after, second_after) = before["stages"], stopped["state"]["stages"]
    assert first == first_after
    assert second["pid"] != second_after["pid"]
    assert lost["state"]["stages"][0] == first
    assert lost["state"]["stages"][1]["node"] not in {first["node"], second_after["node"]}  # the third node
    assert said["orphans"] == []


def test_a_cluster_with_a_token_is_joined_only_with_it(said: dict[str, Any]) -> None:
    joined, refused = said["joined"]
    assert joined == "True"
    assert refused.startswith("--ray-address '127.0.0.1:")
    assert refused.endswith("wants it in RAY_AUTH_TOKEN, or its file in RAY_AUTH_TOKEN_PATH")
