"""Mistakes in a RayService that its schema allows, but KubeRay (1.7) reports in the object's status once it is applied.

Only fields that the base, the components or the overlays of this project set are checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from app.serving.kubernetes.pods import PodGroup, pod_groups

TIMEOUT = "ray.io/initializing-timeout"
NAME = re.compile(r"[a-z]([a-z0-9-]{0,45}[a-z0-9])?")
DURATION = re.compile(r"[1-9]\d*|(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+")
STRATEGIES = ("NewCluster", "NewClusterWithIncrementalUpgrade", "None")
TLS = {"RAY_USE_TLS", "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"}
SIZES = {"num-cpus", "num-gpus", "memory", "resources"}


def refused_by_operator(service: dict[str, Any]) -> Iterator[str]:
    """Yield one sentence for each mistake."""
    metadata, spec = service["metadata"], service["spec"]
    cluster = spec["rayClusterConfig"]
    groups = pod_groups(cluster)
    yield from _metadata(metadata)
    for group in groups:
        yield from _group(group, is_scaled=bool(cluster.get("enableInTreeAutoscaling")))
    yield from _encryption(cluster, groups)
    yield from _fault_tolerance(cluster, groups[0])
    yield from _autoscaling(cluster, groups)
    if (kind := spec.get("upgradeStrategy", {}).get("type", STRATEGIES[0])) not in STRATEGIES:
        yield f"upgradeStrategy.type is {kind!r}; it must be {' or '.join(STRATEGIES)}"


def _metadata(metadata: dict[str, Any]) -> Iterator[str]:
    if not NAME.fullmatch(metadata["name"]):
        yield f"metadata.name is {metadata['name']!r}; it must be a DNS label of at most 47 characters"
    timeout = metadata.get("annotations", {}).get(TIMEOUT)
    if timeout and (not DURATION.fullmatch(timeout) or not re.search("[1-9]", timeout)):
        yield f"annotation {TIMEOUT} is {timeout!r}; it must be seconds or a duration, as in 30m"


def _group(group: PodGroup, *, is_scaled: bool) -> Iterator[str]:
    label, fields, parameters = f"group {group.name}", group.fields, group.parameters
    if fields.get("resources") and (sizes := SIZES & parameters.keys()):
        yield f"{label} has resources, and {', '.join(sorted(sizes))} in rayStartParams; remove one of them"
    if group.name == "head":
        return
    least, most = fields.get("minReplicas"), fields.get("maxReplicas")
    if least is None or most is None:
        if not is_scaled:
            yield f"{label} needs minReplicas and maxReplicas: without an autoscaler they default to 0 and 2^31-1"
    elif not 0 <= least <= most:
        yield f"{label} has minReplicas {least} and maxReplicas {most}; it must be 0 <= min <= max"


def _encryption(cluster: dict[str, Any], groups: list[PodGroup]) -> Iterator[str]:
    if cluster.get("tlsOptions", {}).get("enabled"):
        for group in groups:
            if given := TLS & group.environment.keys():
                yield f"group {group.name} sets {', '.join(sorted(given))}; remove them: tlsOptions sets them"


def _fault_tolerance(cluster: dict[str, Any], head: PodGroup) -> Iterator[str]:
    options = cluster.get("gcsFaultToleranceOptions")
    if "redis-username" in head.parameters or "REDIS_USERNAME" in head.environment:
        yield "the head sets the Redis user; move it to gcsFaultToleranceOptions.redisUsername"
    if options is None:
        if "RAY_REDIS_ADDRESS" in head.environment:
            yield "RAY_REDIS_ADDRESS is set, but there are no gcsFaultToleranceOptions"
        return
    if "redis-password" in head.parameters or "REDIS_PASSWORD" in head.environment:
        yield "the head sets the Redis password; move it to gcsFaultToleranceOptions.redisPassword"
    if "RAY_REDIS_ADDRESS" in head.environment:
        yield "RAY_REDIS_ADDRESS is set; remove it: gcsFaultToleranceOptions.redisAddress sets it"


def _autoscaling(cluster: dict[str, Any], groups: list[PodGroup]) -> Iterator[str]:
    is_scaled, options = bool(cluster.get("enableInTreeAutoscaling")), cluster.get("autoscalerOptions", {})
    is_v2 = is_scaled and options.get("version") == "v2"
    for group in groups:
        if is_v2 and (policy := group.pod.get("restartPolicy", "Never")) != "Never":
            yield f"group {group.name} has restartPolicy {policy}; autoscaler v2 requires Never, the default"
        for field in ("idleTimeoutSeconds", "priority"):
            if group.fields.get(field) and not is_v2:
                yield f"group {group.name} has {field}, for which autoscalerOptions.version must be v2"
