"""What Serve's REST interface says of the application, and what it is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from tests.support.waiting import wait_until

NAME = "spectra"
APPLICATIONS = "/api/serve/applications/"
POLL_S = 0.2  # a question is work for the dashboard, on which starting replicas wait


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

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until the condition holds for what Serve reports of the application."""
        wait_until(lambda: (found := self._known()) and condition(found), self._known, POLL_S)

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
