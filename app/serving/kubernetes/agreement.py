"""Checks that a RayService, its pods and the configuration that it deploys agree.

KubeRay checks none of this. A mistake would break streams at the first change, or leave replicas without a pod.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from app.composition.serve_options import CLOSING_S
from app.config.serve import ServeConfig
from app.serving.environment import node_environment
from app.serving.haproxy import BINARY
from app.serving.kubernetes.pods import PodGroup, pod_groups

DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
SERVE = "serve"  # name of the port that clients reach
PATHS = ("model", "draft_model", "drafter", "heads", "api_keys")


def disagreements(service: dict[str, Any], config: ServeConfig) -> Iterator[str]:
    """Yield one sentence for each mismatch."""
    head, *workers = groups = pod_groups(service["spec"]["rayClusterConfig"])
    yield from _times(service["spec"], groups, config)
    for group in groups:
        yield from _environment(group)
        if "readinessProbe" in group.container:
            yield f"group {group.name} has a readinessProbe; remove it: KubeRay's own asks the proxy for clients"
    yield from _ports(service["spec"], workers, config)
    if not config.edge_resources:
        yield "edge_resources is empty: router and HTTP processes would run in the pods of stages"
    if head.parameters.get("num-cpus") != "0":
        yield 'rayStartParams of the head must have num-cpus "0": a lost head would take down what runs there'
    yield from _room(workers, config)
    yield from _volumes(head, workers, config)


def _times(spec: dict[str, Any], groups: list[PodGroup], config: ServeConfig) -> Iterator[str]:
    """Each timeout must be longer than the one inside it."""
    longest = max(config.grace, config.drain) + CLOSING_S
    delay = spec.get("rayClusterDeletionDelaySeconds", 60)
    for group in groups:
        drain = float(group.environment.get(DRAIN, 30))
        command = group.container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
        least = drain + (float(command[1]) if command[:1] == ["sleep"] else math.inf)
        period = group.pod.get("terminationGracePeriodSeconds", 30)
        if drain <= longest:
            yield (
                f"group {group.name}: {DRAIN} is {drain:g}; it must be above {longest:g}, the longer of grace and "
                f"drain, and {CLOSING_S:g} s"
            )
        if period <= least:
            yield (
                f"group {group.name}: terminationGracePeriodSeconds is {period}; it must be above {least:g}, the sleep "
                f"of preStop and {DRAIN}"
            )
        if delay <= drain:
            yield f"rayClusterDeletionDelaySeconds is {delay}; it must be above {drain:g}, the value of {DRAIN}"


def _environment(group: PodGroup) -> Iterator[str]:
    given = group.environment
    for variable, value in node_environment().items():
        if given.get(variable) != value and not (variable == BINARY and given.get(variable)):  # any path will do
            yield f"group {group.name}: {variable} is {given.get(variable)!r}; it must be {value!r} (`spectra env`)"


def _ports(spec: dict[str, Any], workers: list[PodGroup], config: ServeConfig) -> Iterator[str]:
    """Clients connect to the pods with a port called ``serve``, which must be the edge pods: they run no stage."""
    ports = spec.get("serveService", {}).get("spec", {}).get("ports", [])
    if [port.get("targetPort") for port in ports] != [SERVE]:
        yield f"serveService must have one port with targetPort {SERVE}: a number would match the pods of stages too"
    for group in workers:
        has_port = SERVE in {port.get("name") for port in group.container.get("ports", ())}
        if has_port and not _is_edge(group, config):
            yield f"group {group.name} has a port called {SERVE}; only edge pods may have one"
        elif not has_port and _is_edge(group, config):
            yield f"group {group.name} has no port called {SERVE}; edge pods need one"


def _is_edge(group: PodGroup, config: ServeConfig) -> bool:
    return set(config.edge_resources).issubset(group.fields.get("resources", {}))


def _room(workers: list[PodGroup], config: ServeConfig) -> Iterator[str]:
    """Every stage and standby must fit into some pod."""
    if not any(_is_edge(group, config) for group in workers):
        yield f"no group has the resources of edge_resources: {', '.join(config.edge_resources)}"
    n, stages, ranks = config.most_pipelines, config.stages, config.tensor_parallel
    n_processes = n * (stages + config.standby_stages)
    room_stages = room = 0
    for group in workers:
        if _is_edge(group, config):
            continue
        limits = group.container.get("resources", {}).get("limits", {})
        asked = {"cpu": config.stage_cpus * ranks, "nvidia.com/gpu": config.stage_gpus * ranks}
        fits = [float(limits.get(name, 0)) / amount for name, amount in asked.items() if amount]
        in_pod = int(min(n_processes, *fits)) if fits else n_processes
        room += in_pod * group.fields.get("maxReplicas", 0)
        if config.stage_placement == "strict_spread":  # one stage of a pipeline in a pod
            in_pod = min(in_pod, n)
        elif config.stage_placement == "strict_pack":  # whole pipelines
            in_pod = in_pod // stages * stages
        room_stages += in_pod * group.fields.get("maxReplicas", 0)
    if room_stages < n * stages:
        one_pod = "" if ranks == 1 else f"; the {ranks} ranks of a stage (tensor_parallel) need one pod"
        yield f"the pods have room for {room_stages} stages; {n} x {stages} are needed (replicas x stages){one_pod}"
    elif room < n_processes:
        yield (
            f"the pods have room for {room} processes; {n} x {n_processes // n} are needed (replicas x stages with "
            f"standbys; standby_stages is {config.standby_stages})"
        )


def _volumes(head: PodGroup, workers: list[PodGroup], config: ServeConfig) -> Iterator[str]:
    """Each file that the configuration names must be on a volume of the pods that open it."""
    for field in PATHS:
        path = getattr(config, field)
        if isinstance(path, str) and path.startswith("/"):
            for group in [head, *(one for one in workers if field != "api_keys" or _is_edge(one, config))]:
                mounts = [mount["mountPath"].rstrip("/") + "/" for mount in group.container.get("volumeMounts", ())]
                if not path.startswith(tuple(mounts)):
                    yield f"{field} is {path}, but group {group.name} mounts no volume there"
