"""Ray's autoscaler adds a node for a pipeline that the load asks for, and takes it when the pipeline has gone.

Its nodes are raylets on this machine, which Ray's provider for tests of autoscaling starts. All of it runs in a process
namespace of its own, and ends with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.matrix

DRIVER = """
import json, os, subprocess, sys, threading
import ray
from ray import serve
from ray.autoscaler._private.fake_multi_node.node_provider import (
    FAKE_HEAD_NODE_ID, FAKE_HEAD_NODE_TYPE, FakeMultiNodeProvider)
from ray.serve.api import RunTarget, run_many
from app.builder import build_app
from app.config.serve import ServeConfig
from benchmarks.support.server_process import free_port
from tests.deployments.cluster.ray_nodes import is_running
from tests.support.waiting import wait_until

model, folder = sys.argv[1:3]
gcs = f"127.0.0.1:{free_port()}"
provider = {"type": "external", "module": FakeMultiNodeProvider.__module__ + ".FakeMultiNodeProvider",
            "launch_multiple": True, "head_node_id": FAKE_HEAD_NODE_ID, "gcs_address": gcs}
lists = ("setup_commands", "head_setup_commands", "worker_setup_commands", "initialization_commands",
         "head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files", "rsync_exclude",
         "rsync_filter")
groups = {FAKE_HEAD_NODE_TYPE: {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0},
          "stages": {"resources": {"CPU": 2}, "node_config": {}, "min_workers": 0, "max_workers": 1}}
config = {"cluster_name": "fake", "max_workers": 1, "provider": provider, "auth": {},
          "head_node_type": FAKE_HEAD_NODE_TYPE, "file_mounts": {}, "file_mounts_sync_continuously": False,
          "upscaling_speed": 1.0, "idle_timeout_minutes": 0.1, "available_node_types": groups}
config |= {name: [] for name in lists}
file = os.path.join(folder, "autoscaler.json")
with open(file, "w") as out:
    json.dump(config, out)
fake = {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1", "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID, "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID}
command = [os.path.join(os.path.dirname(sys.executable), "ray"), "start", "--head", "--block", "--num-cpus=2",
           "--port=" + gcs.split(":")[1], "--node-ip-address=127.0.0.1", "--temp-dir=" + folder,
           "--include-dashboard=false", "--object-store-memory=134217728", "--autoscaling-config=" + file]
head = subprocess.Popen(command, env=os.environ | fake, stdout=sys.stderr)


def connected():
    try:
        ray.init(gcs, log_to_driver=False, configure_logging=False)
    except ConnectionError:
        return False
    return True


def nodes():
    return sum(node["Alive"] for node in ray.nodes())


wait_until(connected, "no Ray")
serve.start(proxy_location="Disabled")
args = {"model": model, "name": "tiny", "stages": 2, "stage_cpus": 0.6, "kv_gib": 0.02, "max_sequences": 2, "grace": 1,
        "min_replicas": 1, "max_replicas": 2, "scale_up_delay": 1, "scale_down_delay": 3}
app = build_app(ServeConfig.model_validate(args))
run_many([RunTarget(app, "spectra")], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
wait_until(is_running, "the application does not run")
handle = serve.get_app_handle("spectra")
target = serve.get_deployment_handle("Target", "spectra")
first = target.stage_pids.remote().result()
before = nodes()


def fields(seed):
    return {"prompt": "Snow falls on", "max_tokens": 600, "temperature": 0.8, "seed": seed, "ignore_eos": True,
            "return_token_ids": True}


class Stream(threading.Thread):
    def __init__(self, seed):
        super().__init__(daemon=True)
        self.seed, self.ids = seed, []
        self.start()

    def run(self):
        for chunk in handle.options(stream=True).generate_stream.remote(fields(self.seed)):
            self.ids += [token for choice in chunk["choices"] for token in choice.get("token_ids") or []]


def streamed():
    streams = [Stream(seed % 4) for seed in range(12)]
    return streams, lambda: not any(stream.is_alive() for stream in streams)


alone = Stream(0)
alone.join()
rounds = [streamed()]


def grown():
    if rounds[-1][1]():
        rounds.append(streamed())  # load, until the pipeline is there
    second = serve.status().applications["spectra"].deployments["Target-2"]
    return nodes() > before and second.replica_states.get("RUNNING")


wait_until(grown, "no node for the second pipeline")
wait_until(rounds[-1][1], "streams still run")
texts = {seed: {tuple(one.ids) for streams, _ in rounds for one in streams if one.seed == seed} for seed in range(4)}
most = nodes()
wait_until(lambda: nodes() == before, "the node is not removed")
print(json.dumps({
    "nodes": [before, most, nodes()],
    "texts": [len(found) for found in texts.values()],
    "as_alone": texts[0] == {tuple(alone.ids)} and len(alone.ids) == 600,
    "same_stages": target.stage_pids.remote().result() == first,
    "status": serve.status().applications["spectra"].status,
}), flush=True)
"""


@pytest.fixture(scope="module")
def seen(tiny_checkpoint: Path) -> dict[str, Any]:
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with tempfile.TemporaryDirectory(prefix="as-") as folder:  # pytest's own is too long a path for Ray's sockets
        done = subprocess.run(
            [*alone, sys.executable, "-c", DRIVER, str(tiny_checkpoint), folder],
            capture_output=True,
            text=True,
            env=os.environ | {"RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"},
        )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_node_comes_for_a_pipeline_that_the_load_asks_for_and_goes_with_it(seen: dict[str, Any]) -> None:
    assert seen["nodes"] == [1, 2, 1]
    assert seen["same_stages"]
    assert seen["status"] == "RUNNING"


def test_the_texts_are_the_same_whichever_pipelines_wrote_them(seen: dict[str, Any]) -> None:
    assert seen["texts"] == [1, 1, 1, 1]
    assert seen["as_alone"]
