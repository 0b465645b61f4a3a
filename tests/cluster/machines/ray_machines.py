"""A Ray cluster on machines of a network, as KubeRay's pods would be one, and what an operator says to it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil

from tests.cluster.machines.machine import NetworkMachine, plain
from tests.cluster.machines.net import Net
from tests.cluster.machines.redis_machine import USER, RedisMachine
from tests.support.serve_application import ServeApplication
from tests.support.waiting import wait_until

GCS, DASHBOARD, HTTP = 6379, 8265, 8000
PATIENCE_S = 600  # of clients, between two bytes
STORE = 100 << 20  # bytes of a node's object store
START = 'set -e; eval "$(spectra env --install-haproxy --haproxy /tmp/spectra-haproxy)"; exec ray start "$@"'
KUBERAY = {  # that KubeRay sets beside what a cluster's owner gives
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
    "RAY_timeout_ms_task_wait_for_death_info": "0",
    "RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE": "1",
}


class RayMachines:
    """A head that takes no work and workers, within a ``with`` block; all show one token.

    Args:
        net: where they are.
        logs: folder for what ``ray start`` says on each machine.
        redis: where the head keeps its state; None: it does not, and a new head knows nothing.
        head: name of the head's machine.
        environment: what Ray has on every machine besides.
    """

    def __init__(
        self,
        net: Net,
        logs: Path,
        redis: RedisMachine | None = None,
        head: str = "head",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.net = net
        self._logs = logs
        self.token = secrets.token_hex(32)
        shown = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}
        self._environment = KUBERAY | shown | dict(environment or {})
        self._redis = redis
        self._stack = ExitStack()
        self._started: dict[str, psutil.Process] = {}  # `ray start` by machine
        self._flags: dict[str, tuple[str, ...]] = {}  # of workers, by machine
        self.head = net.machine(head)
        self.operator = self.client(self.head, DASHBOARD, headers={"Authorization": f"Bearer {self.token}"})
        self.application = ServeApplication(self.operator)

    def __enter__(self) -> Self:
        self.start_head()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        for name in self._started:
            self.net.machine(name).kill()

    def client(self, machine: NetworkMachine, port: int = HTTP, **options: Any) -> httpx.Client:
        """A client of a machine, on another one."""
        return self._stack.enter_context(
            self.net.client(f"http://{machine.host}:{port}", timeout=PATIENCE_S, **options)
        )

    def start_head(self) -> None:
        """``ray start --head``; on a machine that was killed, too."""
        flags = ["--head", "--port", str(GCS), "--num-cpus", "0", "--dashboard-host", "0.0.0.0"]
        environment = self._environment
        if not self.head.is_up:
            self.head.start()
        if self._redis is not None:
            self.head.path("/tmp/ca.pem").write_bytes(self._redis.authority)
            flags += ["--redis-username", USER, "--redis-password", self._redis.password]
            environment = environment | {
                "RAY_REDIS_ADDRESS": self._redis.url,
                "RAY_REDIS_CA_CERT": "/tmp/ca.pem",
                "RAY_external_storage_namespace": "spectra",
            }
        self._start(self.head, environment, *flags)

    def join(self, name: str, cpus: int, **resources: float) -> NetworkMachine:
        """``ray start`` on the machine of that name."""
        capacity = ("--num-cpus", str(cpus), "--resources", json.dumps(resources))
        self._flags[name] = ("--address", f"{self.head.host}:{GCS}", *capacity)
        machine = self.net.machine(name)
        self._start(machine, self._environment, *self._flags[name])
        return machine

    def _start(self, machine: NetworkMachine, environment: Mapping[str, str], *flags: str) -> None:
        if not machine.is_up:
            machine.start()
        shutil.copytree(compiled(), machine.path("/tmp/home/.cache"), dirs_exist_ok=True)
        usual = ("--block", "--disable-usage-stats", "--node-ip-address", machine.address)
        words = ("bash", "-c", START, "start", *usual, "--object-store-memory", str(STORE), *flags)
        with (self._logs / f"{machine.name}.txt").open("a") as log:
            self._started[machine.name] = machine.launch(*words, environment=environment, log=log)

    def machine_of(self, deployment: str) -> NetworkMachine:
        """On which the one replica of a deployment runs."""
        address = self.application.node_of(deployment)
        return next(machine for machine in self.net.machines.values() if machine.address == address)

    def drain(self, machine: NetworkMachine) -> psutil.Process:
        """SIGTERM to its ``ray start``, which is what a deleted pod gets first; it does not come back by itself.

        Returns:
            The process that ends when what runs on the machine has ended or moved, or has had its time.
        """
        del self._flags[machine.name]
        self._started[machine.name].send_signal(signal.SIGTERM)
        return self._started[machine.name]

    def until_nodes(self, n: int) -> None:
        """Wait until so many nodes are alive, the head's among them. A worker whose ``ray start`` gave up, as it does
        after 30 s on a busy machine, begins anew, as the containers of a pod do."""

        def has_n() -> bool:
            if self.nodes() == n:
                return True
            for name, flags in self._flags.items():
                machine = self.net.machine(name)
                if machine.is_up and not self._started[name].is_running():
                    machine.kill()
                    self._start(machine, self._environment, *flags)
            return False

        wait_until(has_n, lambda: f"{self.nodes()} nodes are alive, not {n}; {self.said()}")

    def said(self) -> str:
        """The end of what every ``ray start`` said."""
        return "\n".join(f"{log.stem}: {log.read_text()[-500:]}" for log in self._logs.glob("*.txt"))

    def nodes(self) -> int:
        """How many nodes are alive; 0 while the head does not say."""
        with contextlib.suppress(httpx.TransportError):
            answer = self.operator.get("/api/v0/nodes")
            if answer.is_success:
                return sum(node["state"] == "ALIVE" for node in answer.json()["data"]["result"]["result"])
        return 0


@cache
def compiled() -> Path:
    """Folder of what an image has compiled ahead: kernels that every router would compile for ten seconds else."""
    folder = Path(tempfile.gettempdir()) / f"spectra-tests-{os.getuid()}" / "image"
    command = [sys.executable, "-c", "from speculators.kernels import compile_kernels; compile_kernels()"]
    subprocess.run(command, check=True, env=plain({"XDG_CACHE_HOME": str(folder)}))
    return folder
