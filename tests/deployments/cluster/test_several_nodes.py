"""Stages on different Ray nodes: several raylets on this machine, one of which is killed with all it runs. They ask for
a token, and what the stages say to each other goes over TCP in TLS."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from app.cli import main

pytestmark = pytest.mark.cluster

DRIVER = '''
import json, os, signal, subprocess, sys, threading, time
import psutil, ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.api import RunTarget, run_many
from app.builder import build_app
from app.config.serve import ServeConfig

model, folder = sys.argv[1:3]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "temp_dir": folder, "include_dashboard": False})
ray.init(cluster.address, log_to_driver=False, configure_logging=False)
serve.start(proxy_location="Disabled")
args = {"model": model, "name": "tiny", "stages": 2, "stage_cpus": 1, "stage_placement": "strict_spread",
        "method": "pld", "kv_gib": 0.02, "max_sequences": 8, "stage_timeout": 3, "router_patience": 120}
app = build_app(ServeConfig.model_validate(args))
run_many([RunTarget(app, "spectra")], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


def wait(what, true, seconds=120):
    deadline = time.monotonic() + seconds
    while not (found := true()):
        if time.monotonic() > deadline:
            raise TimeoutError(what + ": " + str(serve.status().applications))
        time.sleep(0.1)
    return found


def named(title):
    return [p for p in psutil.Process().children(recursive=True) if called(p).startswith(title)]


def called(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # gone, or dead and not yet taken note of
        return ""


# Router and ingress find room on the head alone; the target has to wait for a second node, which then is its own.
for name in ("Router", "Ingress"):
    wait(name, lambda: named("ray::ServeReplica:spectra:" + name))
second = cluster.add_node(num_cpus=1)
wait("the application", lambda: serve.status().applications["spectra"].status == "RUNNING")
cluster.add_node(num_cpus=1)  # for what the second one loses

handle = serve.get_app_handle("spectra")
target = serve.get_deployment_handle("Target", "spectra")
fields = {"prompt": "Snow falls on", "max_tokens": 1200, "temperature": 0.8, "seed": 3, "ignore_eos": True}
fields["return_token_ids"] = True


class Stream(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.ids = []
        self.start()

    def run(self):
        for chunk in handle.options(stream=True).generate_stream.remote(fields):
            self.ids += chunk["choices"][0]["token_ids"] if chunk.get("choices") else [chunk]


def disturbed(strike):
    streams = [Stream(), Stream()]
    for stream in streams:
        wait("tokens", lambda: len(stream.ids) > 50)
    strike()
    for stream in streams:
        stream.join(150)
    state = target.state.remote().result()
    return {"ids": [stream.ids for stream in streams], "state": state}


def places():
    return target.state.remote().result()["stages"]


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
    command = [sys.executable, "-c", JOIN, cluster.address]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, env=given).stdout.strip()


said = {"joined": [join(), join(RAY_AUTH_TOKEN="0" * 64)]}
said |= {"quiet": handle.generate.remote(fields).result()["choices"][0]["token_ids"]}
said["before"] = target.state.remote().result()
here, there = (stage["node"] for stage in places())
own = target.endpoints.remote(here).result()
said["addresses"] = [own.first, own.last, target.endpoints.remote(there).result().last]
said["stopped"] = disturbed(lambda: os.kill(places()[1]["pid"], signal.SIGSTOP))
said["node_lost"] = disturbed(lambda: second.kill_raylet(check_alive=False))
known = {stage["pid"] for stage in places()}
said["orphans"] = [p.pid for p in named("ray::StageActor") if p.pid not in known]
serve.shutdown()
ray.shutdown()
cluster.shutdown()
print(json.dumps(said))
'''


@pytest.fixture(scope="module")
def said(tiny_checkpoint: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="sn-") as folder:
        command = [sys.executable, "-c", DRIVER, str(tiny_checkpoint), folder]
        token = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=token)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def test_stages_land_on_different_nodes_and_write_what_one_process_writes(
    said: dict[str, Any], tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--max-new-tokens", "300", "--temperature", "0.8", "--seed", "3", "--raw", "--json"]
    capsys.readouterr()
    main(["generate", "--model", str(tiny_checkpoint), "--prompt", "Snow falls on", *flags])
    ids = json.loads(capsys.readouterr().out)["token_ids"]
    assert said["quiet"][: len(ids)] == ids
    assert len({stage["node"] for stage in said["before"]["stages"]}) == 2


def test_within_a_node_a_unix_socket_is_used_and_tcp_between_nodes(said: dict[str, Any]) -> None:
    assert [address.partition(":")[0] for address in said["addresses"]] == ["unix", "tcp", "unix"]


def test_a_stopped_stage_of_another_node_is_killed_there_and_replaced(said: dict[str, Any]) -> None:
    assert said["stopped"]["ids"] == [said["quiet"]] * 2
    before, after = said["before"]["stages"], said["stopped"]["state"]["stages"]
    assert before[0] == after[0]
    assert before[1]["pid"] != after[1]["pid"]


def test_a_lost_node_costs_its_stage_a_move_and_no_stream_anything(said: dict[str, Any]) -> None:
    assert said["node_lost"]["ids"] == [said["quiet"]] * 2
    before, after = said["stopped"]["state"]["stages"], said["node_lost"]["state"]["stages"]
    assert before[0] == after[0]
    assert after[1]["node"] not in {stage["node"] for stage in before}  # the third node
    assert said["orphans"] == []


def test_a_cluster_that_asks_for_a_token_is_joined_with_it_alone(said: dict[str, Any]) -> None:
    joined, refused = said["joined"]
    assert joined == "True"
    assert refused.startswith("--ray-address '127.0.0.1:")
    assert refused.endswith("wants it in RAY_AUTH_TOKEN, or its file in RAY_AUTH_TOKEN_PATH")
