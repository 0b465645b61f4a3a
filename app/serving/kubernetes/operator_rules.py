"""What KubeRay (1.7) refuses in a RayService though its schema allows it: it would say so in the status of the object,
after it has been applied."""

from __future__ import annotations

import re
from collections.abc import Iterator

from app.serving.kubernetes.pods import Object, cluster_of, environment_of, groups, pod_of, ray_of

TIMEOUT = "ray.io/initializing-timeout"
FAULT_TOLERANT = "ray.io/ft-enabled"
NAME = re.compile(r"[a-z]([a-z0-9-]{0,45}[a-z0-9])?")
LONGEST_NAME = 47
DURATION = re.compile(r"[1-9]\d*|(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+")
AUTOSCALER = "RAY_enable_autoscaler_v2"
TLS = {"RAY_USE_TLS", "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"}
SIZES = {"num-cpus", "num-gpus", "memory", "resources"}


def refused_by_operator(service: Object) -> Iterator[str]:
    """What KubeRay would refuse, a sentence each."""
    yield from _metadata(service)
    yield from _groups(service)
    yield from _authentication(cluster_of(service))
    yield from _fault_tolerance(service)
    yield from _autoscaling(service)
    yield from _upgrades(service)


def _metadata(service: Object) -> Iterator[str]:
    name = service["metadata"]["name"]
    if not NAME.fullmatch(name):
        yield f"metadata.name is {name!r}; it must be a DNS label of at most {LONGEST_NAME} characters"
    timeout = service["metadata"].get("annotations", {}).get(TIMEOUT)
    if timeout and (not DURATION.fullmatch(timeout) or not re.search("[1-9]", timeout)):
        yield f"annotation {TIMEOUT} is {timeout!r}; it must be seconds or a duration, as in 30m"
    manager = service["spec"].get("managedBy", "ray.io/kuberay-operator")
    if manager not in ("ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"):
        yield f"spec.managedBy is {manager!r}; it must be ray.io/kuberay-operator or kueue.x-k8s.io/multikueue"


def _groups(service: Object) -> Iterator[str]:
    scaled = bool(cluster_of(service).get("enableInTreeAutoscaling"))
    for name, group in groups(service):
        parameters = group.get("rayStartParams", {})
        if not pod_of(group).get("containers"):
            yield f"group {name} has no container"
        if group.get("resources") and SIZES & parameters.keys():
            yield f"group {name} has resources, and {', '.join(sorted(SIZES & parameters.keys()))} in rayStartParams"
        if "labels" in parameters:
            yield f"group {name} has labels in rayStartParams; they belong into the group's own labels"
        if name == "head":
            continue
        least, most = group.get("minReplicas"), group.get("maxReplicas")
        if not scaled and (least is None or most is None):
            yield f"group {name} needs minReplicas and maxReplicas: without an autoscaler they default to 0 and 2^31-1"
        if least is not None and most is not None and not 0 <= least <= most:
            yield f"group {name} has minReplicas {least} and maxReplicas {most}; it must be 0 <= min <= max"
        if scaled and group.get("suspend"):
            yield f"group {name} is suspended, which the autoscaler does not know"


def _authentication(cluster: Object) -> Iterator[str]:
    options = cluster.get("authOptions", {})
    if options.get("enableK8sTokenAuth"):
        yield "authOptions.enableK8sTokenAuth is for RayClusters; a RayService takes mode: token"
    version = cluster.get("rayVersion", "")
    if options and options.get("mode", "token") == "token" and _version(version) < (2, 52):
        yield f"rayVersion is {version!r}; authOptions need 2.52.0 or later"
    if cluster.get("tlsOptions", {}).get("enabled"):
        for name, group in groups({"spec": {"rayClusterConfig": cluster}}):
            given = TLS & environment_of(ray_of(group)).keys()
            if given:
                yield f"group {name} sets {', '.join(sorted(given))}, which tlsOptions set"


def _version(text: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _fault_tolerance(service: Object) -> Iterator[str]:
    head = cluster_of(service)["headGroupSpec"]
    environment, parameters = environment_of(ray_of(head)), head.get("rayStartParams", {})
    options = cluster_of(service).get("gcsFaultToleranceOptions")
    if "redis-username" in parameters or "REDIS_USERNAME" in environment:
        yield "the Redis user belongs into gcsFaultToleranceOptions.redisUsername"
    if options is None:
        if "RAY_REDIS_ADDRESS" in environment:
            yield "RAY_REDIS_ADDRESS is set, but there are no gcsFaultToleranceOptions"
        return
    if "redis-password" in parameters or "REDIS_PASSWORD" in environment:
        yield "the Redis password belongs into gcsFaultToleranceOptions.redisPassword"
    if "RAY_REDIS_ADDRESS" in environment:
        yield "RAY_REDIS_ADDRESS is set, which gcsFaultToleranceOptions.redisAddress sets"
    if service["metadata"].get("annotations", {}).get(FAULT_TOLERANT):
        yield f"annotation {FAULT_TOLERANT} and gcsFaultToleranceOptions exclude each other"
    other = {"redis": ["storage"], "rocksdb": ["redisAddress", "redisUsername", "redisPassword"]}
    backend = options.get("backend", "redis")
    for field in other[backend]:
        if field in options:
            yield f"gcsFaultToleranceOptions.{field} is not for backend {backend}"


def _autoscaling(service: Object) -> Iterator[str]:
    cluster = cluster_of(service)
    scaled, options = bool(cluster.get("enableInTreeAutoscaling")), cluster.get("autoscalerOptions", {})
    by_variable = environment_of(ray_of(cluster["headGroupSpec"])).get(AUTOSCALER)
    second = scaled and (options.get("version") == "v2" or by_variable in ("1", "true"))
    if by_variable in ("1", "true") and not scaled:
        yield f"{AUTOSCALER} is set, but enableInTreeAutoscaling is not true"
    if scaled and "version" in options and by_variable is not None:
        yield f"autoscalerOptions.version and {AUTOSCALER} exclude each other"
    if options.get("idleTimeoutSeconds", 0) < 0:
        yield f"autoscalerOptions.idleTimeoutSeconds is {options['idleTimeoutSeconds']}; it must be at least 0"
    for name, group in groups(service):
        if second and pod_of(group).get("restartPolicy", "Never") != "Never":
            yield f"group {name} has restartPolicy {pod_of(group)['restartPolicy']}; autoscaler v2 wants none, or Never"
        for field in ("idleTimeoutSeconds", "priority"):
            if group.get(field) and not second:
                yield f"group {name} has {field}, for which autoscalerOptions.version must be v2"


def _upgrades(service: Object) -> Iterator[str]:
    strategy = service["spec"].get("upgradeStrategy", {})
    kind = strategy.get("type", "NewCluster")
    if kind not in ("NewCluster", "NewClusterWithIncrementalUpgrade", "None"):
        yield f"upgradeStrategy.type is {kind!r}; it must be NewCluster, NewClusterWithIncrementalUpgrade or None"
    if cluster_of(service)["headGroupSpec"].get("headService", {}).get("metadata", {}).get("name"):
        yield "headService has a name; KubeRay names it"
    if kind != "NewClusterWithIncrementalUpgrade":
        return
    if not cluster_of(service).get("enableInTreeAutoscaling"):
        yield "an incremental upgrade needs enableInTreeAutoscaling"
    options = strategy.get("clusterUpgradeOptions")
    if options is None:
        yield "an incremental upgrade needs upgradeStrategy.clusterUpgradeOptions"
    elif not 0 <= options["stepSizePercent"] <= options.get("maxSurgePercent", 100) <= 100:
        yield "clusterUpgradeOptions: it must be 0 <= stepSizePercent <= maxSurgePercent <= 100"
    elif options["intervalSeconds"] <= 0 or not options["gatewayClassName"]:
        yield "clusterUpgradeOptions: intervalSeconds must be above 0, and gatewayClassName given"
