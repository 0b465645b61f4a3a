"""What Serve's REST interface says of the application, and what it is told."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from tests.support.server_process import READY_S

NAME = "spectra"
APPLICATIONS = "/api/serve/applications/"


class ServeApplication:
    """The application ``spectra`` of a cluster.

    Args:
        dashboard: client of the cluster's dashboard, which shows its token.
    """

    def __init__(self, dashboard: httpx.Client) -> None:
        self._dashboard = dashboard

    def put(self, config: Mapping[str, Any]) -> None:
        """Deploy a Serve config, as KubeRay's operator does; Serve judges it afterwards."""
        answer = self._dashboard.put(APPLICATIONS, json=config)
        assert answer.is_success, answer.text

    def application(self) -> dict[str, Any]:
        """What Serve says of it."""
        answer = self._dashboard.get(APPLICATIONS).raise_for_status()
        application: dict[str, Any] = answer.json()["applications"][NAME]
        return application

    def replicas(self, *names: str) -> set[str]:
        """Ids of the replicas of deployments."""
        return replicas_of(self.application(), *names)

    def node_of(self, name: str) -> str:
        """Address of the node on which the one replica of a deployment runs."""
        [replica] = self.application()["deployments"][name]["replicas"]
        address: str = replica["node_ip"]
        return address

    def until(self, condition: Callable[[dict[str, Any]], bool], within: float = READY_S) -> None:
        """Wait until Serve says of the application what the condition asks for."""
        deadline = time.monotonic() + within
        while not ((found := self._known()) and condition(found)):
            assert time.monotonic() < deadline, found
            time.sleep(0.2)  # a question is work for the dashboard, which starting replicas wait for

    def _known(self) -> dict[str, Any]:
        """Nothing while the dashboard does not answer, or Serve does not."""
        with contextlib.suppress(httpx.TransportError, httpx.HTTPStatusError, KeyError):
            return self.application()
        return {}


def replicas_of(application: dict[str, Any], *names: str) -> set[str]:
    """Ids of the replicas of deployments; of one that is not there, none."""
    found = application["deployments"]
    return {one["replica_id"] for name in names for one in found.get(name, {}).get("replicas", [])}


def is_running(application: dict[str, Any]) -> bool:
    return bool(application["status"] == "RUNNING")
