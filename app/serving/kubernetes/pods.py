"""The parts of a RayService that rules speak of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Object = Mapping[str, Any]


def groups(service: Object) -> Iterator[tuple[str, Object]]:
    """(name, group) of the head, which is called ``head``, and of every worker group."""
    cluster = cluster_of(service)
    yield "head", cluster["headGroupSpec"]
    for group in cluster.get("workerGroupSpecs", ()):
        yield group["groupName"], group


def cluster_of(service: Object) -> Object:
    """``spec.rayClusterConfig``."""
    cluster: Object = service["spec"]["rayClusterConfig"]
    return cluster


def pod_of(group: Object) -> Object:
    """The pod's ``spec``."""
    pod: Object = group["template"]["spec"]
    return pod


def ray_of(group: Object) -> Object:
    """The container that Ray runs in: KubeRay takes the first."""
    container: Object = next(iter(pod_of(group).get("containers", ())), {})
    return container


def environment_of(container: Object) -> dict[str, str]:
    """Variables by name; what is not given as a value but taken from elsewhere has an empty one."""
    return {entry["name"]: entry.get("value", "") for entry in container.get("env", ())}
