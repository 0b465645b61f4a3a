"""An application that ``serve deploy`` made of a Serve config file on a running cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.support.ray_head import RayHead
from tests.support.server_process import READY_S

FILE = Path(__file__).parents[2] / "docs" / "serve.yaml"


class Site:
    """What ``serve deploy`` makes of a cluster."""

    def __init__(self, head: RayHead) -> None:
        self.head = head
        self.http = httpx.Client(base_url=head.url, timeout=60)
        self.config = yaml.safe_load(FILE.read_text())

    def close(self) -> None:
        """Give connections back: a socket that is collected later fails whatever test runs then."""
        self.http.close()

    def changed(self, deployments: dict[str, dict[str, Any]], **args: Any) -> dict[str, Any]:
        """The config of now with other options of deployments, and other args."""
        config: dict[str, Any] = deepcopy(self.config)
        application = config["applications"][0]
        application["args"] |= args
        options = {one["name"]: one for one in application["deployments"]}
        for name, given in deployments.items():
            options[name] = options.get(name, {"name": name}) | given
        application["deployments"] = [*options.values()]
        return config

    def application(self) -> dict[str, Any]:
        """What Serve says of it."""
        url = f"{self.head.dashboard}/api/serve/applications/"
        found: dict[str, Any] = httpx.get(url, headers=self.head.headers, timeout=60).json()
        application: dict[str, Any] = found["applications"]["spectra"]
        return application

    def replicas(self, *names: str) -> set[str]:
        """Ids of the replicas of deployments."""
        deployments = self.application()["deployments"]
        return {one["replica_id"] for name in names for one in deployments[name]["replicas"]}

    @property
    def model_hash(self) -> str:
        """Of the model that is served now; empty while no ingress answers."""
        answer = self.http.get("/v1/models")
        return str(answer.json()["data"][0]["model_hash"]) if answer.is_success else ""

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until Serve says of the application what the condition asks for."""
        deadline = time.monotonic() + READY_S
        while not condition(found := self.application()):
            assert time.monotonic() < deadline, found
            time.sleep(0.5)  # a question is work for the dashboard, which starting replicas wait for


def is_running(application: dict[str, Any]) -> bool:
    return bool(application["status"] == "RUNNING")
