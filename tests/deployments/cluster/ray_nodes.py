"""An application on several Ray nodes of this machine, for scripts that tests run in their own process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.api import RunTarget, run_many
from ray.serve.context import _get_global_client

from app.builder import build_app
from app.config.serve import ServeConfig
from tests.support.waiting import LIMIT_S, wait_until

NAME = "spectra"
FIELDS = {
    "prompt": "Snow falls on",
    "max_tokens": 600,
    "temperature": 0.8,
    "seed": 3,
    "ignore_eos": True,
    "return_token_ids": True,
}


class Nodes:
    """A cluster; all that has no room on its head waits for a node more.

    Args:
        folder: for Ray's files.
        head_cpus: of the head; two are room for the first stage and for all that is no stage.
    """

    def __init__(self, folder: str, head_cpus: int = 2) -> None:
        head = {"num_cpus": head_cpus, "temp_dir": folder, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(self.cluster.address, log_to_driver=False, configure_logging=False)
        serve.start(proxy_location="Disabled")

    def add(self, cpus: int = 1, **resources: float) -> Any:
        """A node, with room for as many stages as CPUs."""
        return self.cluster.add_node(num_cpus=cpus, resources=resources)

    def deploy_spread(self, model: str, **args: Any) -> None:
        """Deploy stages on nodes of their own, the first on the head; router and ingress are there when this ends."""
        spread = {"stage_placement": "strict_spread", "method": "pld", "max_sequences": 8}
        self.deploy(model, **spread | {"stage_timeout": 3, "router_patience": 120} | args)
        for name in ("Router", "Ingress"):
            wait_until(lambda name=name: named(f"ray::ServeReplica:{NAME}:{name}"), name)

    def deploy(self, model: str, **args: Any) -> None:
        """Ask for an application of two stages."""
        usual = {"model": model, "name": "tiny", "stages": 2, "stage_cpus": 1, "kv_gib": 0.02}
        app = build_app(ServeConfig.model_validate(usual | args))
        run_many(
            [RunTarget(app, NAME)], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False
        )

    def until_running(self) -> None:
        wait_until(is_running, lambda: serve.status().applications)
        self.handle = serve.get_app_handle(NAME)
        self.target = serve.get_deployment_handle("Target", NAME)

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.target.state.remote().result()
        return found

    def quiet(self) -> list[int]:
        ids: list[int] = self.handle.generate.remote(FIELDS).result()["choices"][0]["token_ids"]
        return ids

    def drain(self, node: Any, seconds: int = 300) -> None:
        """Tell a node that it is about to end, as Kubernetes and the autoscaler do."""
        command = [str(Path(sys.executable).with_name("ray")), "drain-node", "--address", self.cluster.address]
        command += ["--node-id", node.node_id, "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
        command += ["--reason-message", "test", "--deadline-remaining-seconds", str(seconds)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def is_alive(self, node: Any) -> bool:
        """Whether the cluster has the node."""
        return any(one["Alive"] for one in ray.nodes() if one["NodeID"] == node.node_id)

    def disturbed(self, strike: Callable[[], Any], done: Callable[[], Any]) -> dict[str, Any]:
        """Let two clients repeat a request during ``strike`` and until ``done``; return their texts and the state."""
        clients = [RepeatingClient(self.handle), RepeatingClient(self.handle)]
        for client in clients:
            wait_until(lambda client=client: len(client.answers[-1]) > 50, "no tokens")
        strike()
        wait_until(done, self.state)
        for client in clients:
            client.is_last = True
            client.join(LIMIT_S)
        answers = [answer for client in clients for answer in client.answers]
        return {"answers": answers, "state": self.state()}

    def close(self) -> None:
        serve.shutdown()
        ray.shutdown()
        self.cluster.shutdown()


class RepeatingClient(threading.Thread):
    """Repeats one seeded request until ``is_last`` is set."""

    def __init__(self, handle: Any) -> None:
        super().__init__(daemon=True)
        self.answers: list[list[Any]] = [[]]
        self.is_last = False
        self._handle = handle
        self.start()

    def run(self) -> None:
        while True:
            for chunk in self._handle.options(stream=True).generate_stream.remote(FIELDS):
                self.answers[-1] += chunk["choices"][0]["token_ids"] if chunk.get("choices") else [chunk]
            if self.is_last:
                return
            self.answers.append([])


def is_running() -> bool:
    """Whether the application runs; ``serve.status()`` pickles a class per deployment, too expensive for polling."""
    return bool(_get_global_client().get_serve_status(NAME).app_status.status == "RUNNING")


def named(title: str) -> list[psutil.Process]:
    """Return child processes whose command line begins with ``title``."""
    return [one for one in psutil.Process().children(recursive=True) if _called(one).startswith(title)]


def _called(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        return ""
