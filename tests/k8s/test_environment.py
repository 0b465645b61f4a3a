"""Pods have what `spectra env` says, and the versions that the package pins."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from app.serving.environment import node_environment
from app.serving.kubernetes.pods import environment_of
from tests.support.manifests import OVERLAYS, pods, ray_service

ROOT = Path(__file__).resolve().parents[2]
OF_THE_MANIFESTS = {  # what a pod needs besides, and no other machine
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S",
    "RAY_REDIS_CA_CERT",
    "RAY_BACKEND_LOG_JSON",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
}
OF_RETRIEVAL = {"SPECTRA_REDIS_USERNAME", "SPECTRA_REDIS_PASSWORD"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_pod_of_ray_has_the_environment_and_nothing_unknown(overlay: str) -> None:
    for group, pod in pods(ray_service(overlay)):
        given = environment_of(pod["containers"][0])
        assert given | node_environment() == given, group
        assert given.keys() - node_environment().keys() - OF_RETRIEVAL == OF_THE_MANIFESTS, group
        assert group == "edge" or not OF_RETRIEVAL & given.keys(), group


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_run_the_ray_that_is_installed(overlay: str) -> None:
    pinned = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f"ray[serve]=={ray_service(overlay)['spec']['rayClusterConfig']['rayVersion']}" in pinned


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_edge_pods_are_on_different_nodes(overlay: str) -> None:
    edge = dict(pods(ray_service(overlay)))["edge"]
    (term,) = edge["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "edge"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_object_store_and_what_nccl_shares_fit_into_shared_memory(overlay: str) -> None:
    cluster = ray_service(overlay)["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (shared,) = [volume["emptyDir"] for volume in group["template"]["spec"]["volumes"] if volume["name"] == "shm"]
        assert shared["medium"] == "Memory"
        size = int(shared["sizeLimit"].removesuffix("Gi")) << 30
        assert int(group["rayStartParams"]["object-store-memory"]) <= size // 2
