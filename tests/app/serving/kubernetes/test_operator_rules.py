"""Each rule of KubeRay that is checked refuses the RayServices that break it, and no others."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from app.serving.kubernetes.operator_rules import refused_by_operator
from tests.support.manifests import ray_service

SCALED: dict[str, Any] = {"enableInTreeAutoscaling": True, "autoscalerOptions": {"version": "v2"}}


def variable(name: str, value: str = "1") -> Callable[[Any], None]:
    def spoil(service: Any) -> None:
        head = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
        head["containers"][0]["env"].append({"name": name, "value": value})

    return spoil


def cluster(**fields: Any) -> Callable[[Any], None]:
    return lambda service: service["spec"]["rayClusterConfig"].update(copy.deepcopy(fields))


def head(**fields: Any) -> Callable[[Any], None]:
    return lambda service: service["spec"]["rayClusterConfig"]["headGroupSpec"].update(fields)


def edge(**fields: Any) -> Callable[[Any], None]:
    return lambda service: service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0].update(fields)


def without_edge(field: str) -> Callable[[Any], None]:
    return lambda service: service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0].pop(field)


def annotated(name: str, value: str) -> Callable[[Any], None]:
    return lambda service: service["metadata"]["annotations"].update({name: value})


def both(*spoils: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda service: [spoil(service) for spoil in spoils] and None


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda service: service["metadata"].update(name="spectra" * 7), "metadata.name is"),
        (lambda service: service["metadata"].update(name="2spectra"), "metadata.name is"),
        (annotated("ray.io/initializing-timeout", "soon"), "initializing-timeout is 'soon'"),
        (annotated("ray.io/initializing-timeout", "0m"), "initializing-timeout is '0m'"),
        (edge(rayStartParams={"num-cpus": "4"}), "group edge has resources, and num-cpus in rayStartParams"),
        (without_edge("minReplicas"), "group edge needs minReplicas"),
        (edge(minReplicas=3), "group edge has minReplicas 3 and maxReplicas 2"),
        (edge(minReplicas=-1), "group edge has minReplicas -1"),
        (both(cluster(tlsOptions={"enabled": True}), variable("RAY_USE_TLS")), "group head sets RAY_USE_TLS"),
        (variable("REDIS_USERNAME"), "gcsFaultToleranceOptions.redisUsername"),
        (variable("REDIS_PASSWORD"), "gcsFaultToleranceOptions.redisPassword"),
        (variable("RAY_REDIS_ADDRESS"), "redisAddress sets it"),
        (head(rayStartParams={"redis-password": "x"}), "gcsFaultToleranceOptions.redisPassword"),
        (edge(idleTimeoutSeconds=5), "group edge has idleTimeoutSeconds, for which"),
        (edge(priority=5), "group edge has priority, for which"),
        (
            both(
                cluster(**SCALED),
                lambda s: s["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"].update(
                    restartPolicy="Always"
                ),
            ),
            "group edge has restartPolicy Always",
        ),
        (
            lambda service: service["spec"].update(upgradeStrategy={"type": "Rolling"}),
            "upgradeStrategy.type is 'Rolling'",
        ),
    ],
)
def test_each_mistake_is_refused_with_one_sentence(spoil: Callable[[Any], None], says: str) -> None:
    service = ray_service("cpu-demo")
    spoil(service)
    (sentence,) = refused_by_operator(service)
    assert says in sentence


def test_a_valid_autoscaled_cluster_is_accepted() -> None:
    service = ray_service("cpu-demo")
    both(cluster(**SCALED), edge(idleTimeoutSeconds=5, priority=1))(service)
    assert list(refused_by_operator(service)) == []
