"""A Ray cluster of this machine alone that takes Serve config files, as ``ray start --head`` leaves one behind.

Run as a program it is that cluster: it prints the dashboard's address, and ends when its stdin does.

    python -m tests.support.ray_head PORT CPUS
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.serving.environment import claim_ports, folder_for_sockets, serve_environment
from app.serving.ray_session import end_ray, init_ray
from benchmarks.support.server_process import HOST, Program, free_port

CPUS = 2


class RayHead(Program):
    """The cluster as a process; ``with RayHead() as head: head.deploy(config)``."""

    def __init__(self, cpus: int = CPUS) -> None:
        port = free_port()
        self.url = f"http://{HOST}:{port}"  # of the application
        self.dashboard = ""  # its address, known once the cluster has started
        # Those who deploy show the token that the cluster was started with, if it wants one.
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)} | os.environ
        super().__init__("Ray", [sys.executable, "-m", __spec__.name, str(port), str(cpus)], token)

    @property
    def headers(self) -> dict[str, str]:
        """For questions to the dashboard."""
        assert self._environment is not None
        return {"Authorization": f"Bearer {self._environment['RAY_AUTH_TOKEN']}"}

    def is_up(self, line: str) -> bool:
        """The one line is the dashboard's address."""
        self.dashboard = line.strip()
        return bool(self.dashboard)

    def deploy(self, config: Path | Mapping[str, Any]) -> None:
        """``serve deploy`` of a config file, or of what one would hold; returns once Serve has taken it.

        Raises:
            CalledProcessError: Serve refused it; ``stdout`` says why.
        """
        serve = str(Path(sys.executable).with_name("serve"))
        with tempfile.TemporaryDirectory() as folder:
            file = config if isinstance(config, Path) else Path(folder) / "serve.yaml"
            if not isinstance(config, Path):
                file.write_text(json.dumps(config))  # JSON is YAML
            command = [serve, "deploy", "--address", self.dashboard, str(file)]
            subprocess.run(
                command, check=True, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )


def main() -> None:
    """Be the cluster."""
    port, cpus = map(int, sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="spectra-", dir=folder_for_sockets()) as scratch, claim_ports() as ports:
        for name, value in serve_environment(scratch, ports.getsockname()[1]).items():
            os.environ.setdefault(name, value)
        here = {"include_dashboard": True, "dashboard_host": HOST, "dashboard_port": free_port()}
        quiet = {"log_to_driver": False, "configure_logging": False, "object_store_memory": 128 << 20}
        init_ray({"address": "local", "num_cpus": cpus, **here, **quiet})
        from ray import serve

        try:
            serve.start(http_options={"host": HOST, "port": port})
            print(f"http://{HOST}:{here['dashboard_port']}", flush=True)
            sys.stdin.read()
            serve.shutdown()
        finally:
            end_ray()


if __name__ == "__main__":
    main()
