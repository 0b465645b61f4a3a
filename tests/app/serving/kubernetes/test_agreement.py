"""Pods that do not fit the application that they serve are refused, with the field and the allowed values."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.support.manifests import OVERLAYS, ray_service

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing Serve warns
    from app.serving.kubernetes.render import wrong_in


def served(**arguments: Any) -> Callable[[Any], None]:
    def spoil(service: Any) -> None:
        config = yaml.safe_load(service["spec"]["serveConfigV2"])
        config["applications"][0]["args"] |= arguments
        service["spec"]["serveConfigV2"] = yaml.safe_dump(config)

    return spoil


def group(number: int, place: str, value: Any) -> Callable[[Any], None]:
    def spoil(service: Any) -> None:
        *path, last = place.split(".")
        at = service["spec"]["rayClusterConfig"]["workerGroupSpecs"][number]
        for part in path:
            at = at[int(part)] if part.isdigit() else at[part]
        at[int(last) if last.isdigit() else last] = value

    return spoil


CONTAINER = "template.spec.containers.0"
EDGE, STAGE = 0, 1


def test_the_pods_of_every_overlay_fit_what_they_serve() -> None:
    for overlay in OVERLAYS:
        assert wrong_in(ray_service(overlay)) == [], overlay


@pytest.mark.parametrize(
    ("overlay", "spoil", "says"),
    [
        ("cpu-demo", served(grace=900), "it must be above 905, the longer of grace and drain, and 5 s"),
        ("cpu-demo", served(drain=895), "it must be above 900, the longer of grace and drain, and 5 s"),
        (
            "cpu-demo",
            group(STAGE, "template.spec.terminationGracePeriodSeconds", 910),
            "it must be above 910, the sleep of preStop and",
        ),
        ("cpu-demo", lambda s: s["spec"].update(rayClusterDeletionDelaySeconds=900), "DeletionDelaySeconds is 900"),
        ("cpu-demo", group(STAGE, f"{CONTAINER}.lifecycle.preStop.exec.command", ["ray", "stop"]), "inf"),
        (
            "cpu-demo",
            group(EDGE, f"{CONTAINER}.env.0", {"name": "RAY_SERVE_ENABLE_HA_PROXY", "value": "0"}),
            "group edge: RAY_SERVE_ENABLE_HA_PROXY is '0'; it must be '1'",
        ),
        ("cpu-demo", group(STAGE, f"{CONTAINER}.ports.0.name", "serve"), "group stage has a port called serve"),
        ("cpu-demo", group(EDGE, f"{CONTAINER}.ports.0.name", "http"), "group edge has no port called serve"),
        ("cpu-demo", lambda s: s["spec"].pop("serveService"), "serveService must have one port with targetPort serve"),
        ("cpu-demo", group(STAGE, f"{CONTAINER}.readinessProbe", {}), "group stage has a readinessProbe"),
        ("cpu-demo", served(edge_resources={"door": 0.01}), "no group has the resources of edge_resources: door"),
        (
            "cpu-demo",
            lambda s: s["spec"]["rayClusterConfig"]["headGroupSpec"]["rayStartParams"].pop("num-cpus"),
            'num-cpus "0"',
        ),
        ("cpu-demo", served(stages=3), "the pods have room for 2 stages; 1 x 3 are needed (replicas x stages)"),
        ("h100-4stage", served(replicas=2), "the pods have room for 4 stages; 2 x 4 are needed"),
        ("cpu-demo", served(min_replicas=1, max_replicas=9), "room for 4 stages; 9 x 2 are needed"),
        (
            "h100-4stage",
            served(standby_stages=1),
            "room for 4 processes; 1 x 5 are needed (replicas x stages with standbys; standby_stages is 1)",
        ),
        (
            "h100-tp4x2",
            served(tensor_parallel=8, stages=1),
            "1 x 1 are needed (replicas x stages); the 8 ranks of a stage (tensor_parallel) need one pod",
        ),
        ("h100-tp4x2", served(stages=3), "room for 2 stages; 1 x 3 are needed"),
        ("h100-tp4x2", served(stage_cpus=9), "the pods have room for 0 stages"),
        ("h100-4stage", served(stage_cpus=9), "the pods have room for 0 stages"),
        ("h100-4stage", served(model="/model/llama"), "model is /model/llama, but group head mounts no volume there"),
        ("cpu-demo", served(edge_resources={}), "router and HTTP processes would run in the pods of stages"),
        (
            "multi-tenant",
            served(api_keys="/keys.jsonl"),
            "api_keys is /keys.jsonl, but group head mounts no volume there",
        ),
    ],
)
def test_a_mismatch_is_named_with_its_field(overlay: str, spoil: Callable[[Any], None], says: str) -> None:
    service = ray_service(overlay)
    spoil(service)
    assert any(says in sentence for sentence in wrong_in(service)), wrong_in(service)


def test_one_more_pod_is_room_for_a_standby() -> None:
    service = ray_service("h100-4stage")
    served(standby_stages=1)(service)
    group(STAGE, "maxReplicas", 2)(service)
    assert wrong_in(service) == []
