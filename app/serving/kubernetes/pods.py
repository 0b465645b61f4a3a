"""The groups of pods in a RayService manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PodGroup:
    """The head or a worker group of a RayService."""

    name: str  # ``head``: the head
    fields: dict[str, Any]

    @property
    def pod(self) -> Any:
        return self.fields["template"]["spec"]

    @property
    def container(self) -> Any:
        """The container that runs Ray: KubeRay takes the first. Empty if there is none."""
        return next(iter(self.pod.get("containers", ())), {})

    @property
    def environment(self) -> dict[str, str]:
        """Variables of that container by name; one with ``valueFrom`` is empty."""
        return {entry["name"]: entry.get("value", "") for entry in self.container.get("env", ())}

    @property
    def parameters(self) -> Any:
        return self.fields.get("rayStartParams", {})


def pod_groups(cluster: dict[str, Any]) -> list[PodGroup]:
    """Return the groups of a ``rayClusterConfig``, the head first."""
    workers = cluster.get("workerGroupSpecs", ())
    return [PodGroup("head", cluster["headGroupSpec"]), *(PodGroup(one["groupName"], one) for one in workers)]
