"""Where a RayService, its pods and the configuration that it deploys must agree.

No operator looks at any of it: a mistake costs streams at the first change, or leaves replicas without a place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from app.composition.serve_options import CLOSING_S
from app.config.serve import ServeConfig
from app.serving.environment import node_environment
from app.serving.haproxy import BINARY
from app.serving.kubernetes.pods import Object, cluster_of, environment_of, groups, pod_of, ray_of

DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
SERVE = "serve"  # name of the port that clients reach
PATHS = ("model", "draft_model", "drafter", "heads", "api_keys")


def disagreements(service: Object, config: ServeConfig) -> Iterator[str]:
    """What does not fit, a sentence each."""
    yield from _times(service, config)
    yield from _environment(service)
    yield from _ports(service, config)
    yield from _places(service, config)
    yield from _paths(service, config)


def _times(service: Object, config: ServeConfig) -> Iterator[str]:
    """Each wait must outlast the one that it waits for."""
    longest = max(config.grace, config.drain) + CLOSING_S
    delay = service["spec"].get("rayClusterDeletionDelaySeconds", 60)
    for name, group in groups(service):
        drain = float(environment_of(ray_of(group)).get(DRAIN, 30))
        whole = pod_of(group).get("terminationGracePeriodSeconds", 30)
        if not drain > longest:
            yield f"group {name}: {DRAIN} is {drain:g}; it must be above grace, drain and {CLOSING_S:g} s, {longest:g}"
        if not whole > _sleep(ray_of(group)) + drain:
            yield (
                f"group {name}: terminationGracePeriodSeconds is {whole}; it must be above the sleep of preStop "
                f"and {DRAIN}, {_sleep(ray_of(group)) + drain:g}"
            )
        if not delay > drain:
            yield f"rayClusterDeletionDelaySeconds is {delay}; it must be above {DRAIN}, {drain:g}"


def _sleep(container: Object) -> float:
    command = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
    return float(command[1]) if command[:1] == ["sleep"] else math.inf


def _environment(service: Object) -> Iterator[str]:
    for name, group in groups(service):
        given = environment_of(ray_of(group))
        for variable, value in node_environment().items():
            if variable == BINARY and given.get(variable):
                continue  # where an image has the script is its own affair
            if given.get(variable) != value:
                yield f"group {name}: {variable} is {given.get(variable)!r}; it must be {value!r} (`spectra env`)"


def _ports(service: Object, config: ServeConfig) -> Iterator[str]:
    """Clients connect to pods with a port called ``serve``: edge pods, where no stage runs."""
    ports = service["spec"].get("serveService", {}).get("spec", {}).get("ports", [])
    if [port.get("targetPort") for port in ports] != [SERVE]:
        yield f"serveService must have one port with targetPort {SERVE}: by number it would be that of stages, too"
    for name, group in groups(service):
        named = SERVE in {port.get("name") for port in ray_of(group).get("ports", ())}
        if name != "head" and named != _is_edge(group, config):
            yield f"group {name} {'has a' if named else 'has no'} port called {SERVE}; edge pods have one, stages none"
        if "readinessProbe" in ray_of(group):
            yield f"group {name} has a readinessProbe; without one KubeRay asks for the proxy that clients reach"


def _is_edge(group: Object, config: ServeConfig) -> bool:
    return set(config.edge_resources).issubset(group.get("resources", {}))


def _places(service: Object, config: ServeConfig) -> Iterator[str]:
    """A place for each part of the application."""
    if not config.edge_resources:
        yield "edge_resources is empty: router and HTTP processes would run beside stages"
    if cluster_of(service)["headGroupSpec"].get("rayStartParams", {}).get("num-cpus") != "0":
        yield 'the head must have num-cpus "0": what runs there is lost with it'
    workers = [group for name, group in groups(service) if name != "head"]
    if not any(_is_edge(group, config) for group in workers):
        yield f"no group has the resources of edge_resources, {', '.join(config.edge_resources)}"
    rooms = [
        (group.get("maxReplicas", 0), _processes_in(ray_of(group), config))
        for group in workers
        if not _is_edge(group, config)
    ]
    n, processes = config.most_pipelines, config.stages + config.standby_stages
    fits = sum(pods * _stages_among(room, config) for pods, room in rooms)
    if fits < n * config.stages:
        yield f"there is room for {fits} stages; replicas and stages are {n} x {config.stages}"
    elif (fits := sum(pods * room for pods, room in rooms)) < n * processes:
        yield (
            f"there is room for {fits} processes; replicas, and stages with their standbys, are {n} x {processes} "
            f"(standby_stages is {config.standby_stages})"
        )


def _processes_in(container: Object, config: ServeConfig) -> int:
    """How many stages and standbys one pod has CPUs and GPUs for, of those that are wanted."""
    limits = container.get("resources", {}).get("limits", {})
    rooms = [float(limits.get("cpu", 0)) / config.stage_cpus if config.stage_cpus else math.inf]
    if config.stage_gpus:
        rooms.append(float(limits.get("nvidia.com/gpu", 0)) / config.stage_gpus)
    return int(min(*rooms, config.most_pipelines * (config.stages + config.standby_stages)))


def _stages_among(processes: int, config: ServeConfig) -> int:
    """How many of a pod's processes can be stages, as the placement has it; the others can be standbys."""
    if config.stage_placement == "strict_spread":
        return min(processes, config.most_pipelines)
    return processes // config.stages * config.stages if config.stage_placement == "strict_pack" else processes


def _paths(service: Object, config: ServeConfig) -> Iterator[str]:
    """Files that the configuration names are on volumes of the pods that open them."""
    for field in PATHS:
        path = getattr(config, field)
        if not isinstance(path, str) or not path.startswith("/"):
            continue
        for name, group in groups(service):
            if field == "api_keys" and name != "head" and not _is_edge(group, config):
                continue
            mounts = [mount["mountPath"].rstrip("/") + "/" for mount in ray_of(group).get("volumeMounts", ())]
            if not path.startswith(tuple(mounts)):
                yield f"{field} is {path}, where group {name} has no volume"
