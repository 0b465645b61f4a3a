"""The mistakes in a RayService that KubeRay (1.7) refuses although its schema allows them.

KubeRay itself reports them only in the status of the object, after it has been applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from app.serving.kubernetes.pods import PodGroup, pod_groups

TIMEOUT = "ray.io/initializing-timeout"
FAULT_TOLERANT = "ray.io/ft-enabled"
NAME = re.compile(r"[a-z]([a-z0-9-]{0,45}[a-z0-9])?")
DURATION = re.compile(r"[1-9]\d*|(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+")
MANAGERS = ("ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue")
INCREMENTAL = "NewClusterWithIncrementalUpgrade"
STRATEGIES = ("NewCluster", INCREMENTAL, "None")
AUTOSCALER = "RAY_enable_autoscaler_v2"
TLS = {"RAY_USE_TLS", "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"}
SIZES = {"num-cpus", "num-gpus", "memory", "resources"}
OTHER_BACKEND = {"redis": ("storage",), "rocksdb": ("redisAddress", "redisUsername", "redisPassword")}


def refused_by_operator(service: dict[str, Any]) -> Iterator[str]:
    """Yield one sentence for each mistake."""
    metadata, spec = service["metadata"], service["spec"]
    cluster = spec["rayClusterConfig"]
    groups = pod_groups(cluster)
    yield from _metadata(metadata, spec)
    for group in groups:
        yield from _group(group, is_scaled=bool(cluster.get("enableInTreeAutoscaling")))
    yield from _authentication(cluster, groups)
    yield from _fault_tolerance(metadata, cluster, groups[0])
    yield from _autoscaling(cluster, groups)
    yield from _upgrades(spec.get("upgradeStrategy", {}), cluster)


def _metadata(metadata: dict[str, Any], spec: dict[str, Any]) -> Iterator[str]:
    if not NAME.fullmatch(metadata["name"]):
        yield f"metadata.name is {metadata['name']!r}; it must be a DNS label of at most 47 characters"
    timeout = metadata.get("annotations", {}).get(TIMEOUT)
    if timeout and (not DURATION.fullmatch(timeout) or not re.search("[1-9]", timeout)):
        yield f"annotation {TIMEOUT} is {timeout!r}; it must be seconds or a duration, as in 30m"
    if (manager := spec.get("managedBy", MANAGERS[0])) not in MANAGERS:
        yield f"spec.managedBy is {manager!r}; it must be {' or '.join(MANAGERS)}"


def _group(group: PodGroup, *, is_scaled: bool) -> Iterator[str]:
    label, fields, parameters = f"group {group.name}", group.fields, group.parameters
    if not group.container:
        yield f"{label} has no container"
    if fields.get("resources") and (sizes := SIZES & parameters.keys()):
        yield f"{label} has resources, and {', '.join(sorted(sizes))} in rayStartParams; remove one of them"
    if "labels" in parameters:
        yield f"{label} has labels in rayStartParams; move them to the group's own labels"
    if group.name == "head":
        return
    least, most = fields.get("minReplicas"), fields.get("maxReplicas")
    if least is None or most is None:
        if not is_scaled:
            yield f"{label} needs minReplicas and maxReplicas: without an autoscaler they default to 0 and 2^31-1"
    elif not 0 <= least <= most:
        yield f"{label} has minReplicas {least} and maxReplicas {most}; it must be 0 <= min <= max"
    if is_scaled and fields.get("suspend"):
        yield f"{label} has suspend, which the autoscaler does not support"


def _authentication(cluster: dict[str, Any], groups: list[PodGroup]) -> Iterator[str]:
    options, version = cluster.get("authOptions", {}), cluster.get("rayVersion", "")
    if options.get("enableK8sTokenAuth"):
        yield "authOptions.enableK8sTokenAuth is for RayClusters; a RayService takes mode: token"
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if options and options.get("mode", "token") == "token" and numbers < (2, 52):
        yield f"rayVersion is {version!r}; authOptions need 2.52.0 or later"
    if cluster.get("tlsOptions", {}).get("enabled"):
        for group in groups:
            if given := TLS & group.environment.keys():
                yield f"group {group.name} sets {', '.join(sorted(given))}; remove them: tlsOptions sets them"


def _fault_tolerance(metadata: dict[str, Any], cluster: dict[str, Any], head: PodGroup) -> Iterator[str]:
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
    if metadata.get("annotations", {}).get(FAULT_TOLERANT):
        yield f"annotation {FAULT_TOLERANT} and gcsFaultToleranceOptions exclude each other"
    backend = options.get("backend", "redis")
    for field in OTHER_BACKEND[backend]:
        if field in options:
            yield f"gcsFaultToleranceOptions.{field} is not for backend {backend}"


def _autoscaling(cluster: dict[str, Any], groups: list[PodGroup]) -> Iterator[str]:
    is_scaled, options = bool(cluster.get("enableInTreeAutoscaling")), cluster.get("autoscalerOptions", {})
    variable = groups[0].environment.get(AUTOSCALER)
    is_set = variable in ("1", "true")
    is_v2 = is_scaled and (options.get("version") == "v2" or is_set)
    if is_set and not is_scaled:
        yield f"{AUTOSCALER} is set, but enableInTreeAutoscaling is not true"
    if is_scaled and "version" in options and variable is not None:
        yield f"autoscalerOptions.version and {AUTOSCALER} exclude each other"
    if options.get("idleTimeoutSeconds", 0) < 0:
        yield f"autoscalerOptions.idleTimeoutSeconds is {options['idleTimeoutSeconds']}; it must be at least 0"
    for group in groups:
        if is_v2 and (policy := group.pod.get("restartPolicy", "Never")) != "Never":
            yield f"group {group.name} has restartPolicy {policy}; autoscaler v2 requires Never, the default"
        for field in ("idleTimeoutSeconds", "priority"):
            if group.fields.get(field) and not is_v2:
                yield f"group {group.name} has {field}, for which autoscalerOptions.version must be v2"


def _upgrades(strategy: dict[str, Any], cluster: dict[str, Any]) -> Iterator[str]:
    kind = strategy.get("type", "NewCluster")
    if kind not in STRATEGIES:
        yield f"upgradeStrategy.type is {kind!r}; it must be {', '.join(STRATEGIES)}"
    if cluster["headGroupSpec"].get("headService", {}).get("metadata", {}).get("name"):
        yield "headService has a name; remove it: KubeRay names the service"
    if kind != INCREMENTAL:
        return
    if not cluster.get("enableInTreeAutoscaling"):
        yield "an incremental upgrade needs enableInTreeAutoscaling"
    options = strategy.get("clusterUpgradeOptions")
    if options is None:
        yield "an incremental upgrade needs upgradeStrategy.clusterUpgradeOptions"
    elif not 0 <= options["stepSizePercent"] <= options.get("maxSurgePercent", 100) <= 100:
        yield "clusterUpgradeOptions: it must be 0 <= stepSizePercent <= maxSurgePercent <= 100"
    elif options["intervalSeconds"] <= 0 or not options["gatewayClassName"]:
        yield "clusterUpgradeOptions: intervalSeconds must be above 0, and gatewayClassName given"
