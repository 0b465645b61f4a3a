"""A cluster as in Kubernetes: a head without work, nodes for stages, and an edge node that comes last."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.deployments.cluster.ray_scripts import run_script

pytestmark = pytest.mark.matrix

SCRIPT = """
import json, sys
from ray import serve
from ray.serve.context import _get_global_client
from tests.deployments.cluster.ray_nodes import Nodes
from tests.support.waiting import wait_until

model, folder = sys.argv[1:]
nodes = Nodes(folder, head_cpus=0)
stages = nodes.add(4)
nodes.deploy(model, live="default", edge_resources={"edge": 0.01}, retrieval_cache=folder + "/cache")


def deployments():
    return serve.status().applications["spectra"].deployments


wait_until(lambda: "Target" in deployments() and deployments()["Target"].status == "HEALTHY", deployments)
said = {"up_without_edge": [name for name, one in deployments().items() if one.status == "HEALTHY"]}
edge = nodes.add(1, edge=1)
nodes.until_running()
names = {node.node_id: name for name, node in (("head", nodes.cluster.head_node), ("stages", stages), ("edge", edge))}
replicas = _get_global_client().get_serve_details()["applications"]["spectra"]["deployments"]
said["nodes"] = {name: [names[one["node_id"]] for one in found["replicas"]] for name, found in replicas.items()}
said["stages"] = [names[stage["node"]] for stage in nodes.state()["stages"]]
answer = nodes.handle.generate.remote({"prompt": "Snow falls", "max_tokens": 20})
said["tokens"] = answer.result()["usage"]["completion_tokens"]
nodes.close()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tiny_checkpoint: Path) -> dict[str, Any]:
    return run_script(SCRIPT, tiny_checkpoint, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))


def test_what_clients_connect_to_waits_for_an_edge_node_and_stages_run_elsewhere(said: dict[str, Any]) -> None:
    assert said["up_without_edge"] == ["Target"]
    assert [said["nodes"][name] for name in ("Router", "Ingress", "Retrieval")] == [["edge"]] * 3
    assert said["nodes"]["Target"] == ["stages"]
    assert said["stages"] == ["stages", "stages"]
    assert said["tokens"] == 20
