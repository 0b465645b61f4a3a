"""The manifests of every overlay: what pods may do, who reaches them, and what they need."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.config.errors import config_of
from app.inputs.default_model import DEFAULT_MODEL, PACKAGE, REQUIREMENT, default_model
from app.serving.environment import node_environment
from tests.support.manifests import FOLDER, OVERLAYS, containers, documents, of_kind, pods, ray_service

EVERY_OVERLAY = pytest.mark.parametrize("overlay", OVERLAYS)
DOCKERFILE = (FOLDER / "image" / "Dockerfile").read_text()
BY_HAND = set(re.findall(r"^\| `([a-z-]+)` \|", (FOLDER / "README.md").read_text(), re.MULTILINE))
OF_PODS = {  # what a pod needs in addition to the environment of any other node
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S",
    "RAY_REDIS_CA_CERT",
    "RAY_BACKEND_LOG_JSON",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
}
OF_RETRIEVAL = {"SPECTRA_REDIS_USERNAME", "SPECTRA_REDIS_PASSWORD"}


@EVERY_OVERLAY
def test_every_container_has_limits_and_no_privileges(overlay: str) -> None:
    for document in documents(overlay):
        scales = document.get("spec", {}).get("rayClusterConfig", {}).get("enableInTreeAutoscaling", False)
        for where, pod in pods(document):
            context = pod["securityContext"]
            assert context["runAsNonRoot"], where
            assert context["runAsUser"] > 0, where
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}, where
            assert pod.get("automountServiceAccountToken", True) is (where == "head" and scales), where
            for container in containers(pod):
                resources = container["resources"]
                assert resources["limits"] == resources["requests"], container["name"]
                assert {"cpu", "memory"} <= resources["limits"].keys(), container["name"]
                assert container["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                }, container["name"]
                assert re.search(r":(?!latest$)[^/]+$", container["image"]), container["image"]
                if document["kind"] == "StatefulSet":  # KubeRay gives Ray's containers theirs, and Jobs end
                    assert {"readinessProbe", "livenessProbe"} <= container.keys()


def referred(overlay: str) -> set[tuple[str, str]]:
    """Return (kind, name) of what pods and ingresses of an overlay need."""
    by_key = {
        "secretName": "Secret",
        "claimName": "PersistentVolumeClaim",
        "serviceAccountName": "ServiceAccount",
        "priorityClassName": "PriorityClass",
    }
    found: set[tuple[str, str]] = set()

    def look(value: Any, key: str = "") -> None:
        if isinstance(value, dict):
            if key in ("secretKeyRef", "secretRef"):
                found.add(("Secret", value["name"]))
            elif key in ("configMapKeyRef", "configMapRef", "configMap"):
                found.add(("ConfigMap", value["name"]))
            for name, inner in value.items():
                look(inner, name)
        elif isinstance(value, list):
            for inner in value:
                look(inner, "secretRef" if key == "certificateRefs" else "")
        elif key in by_key:
            found.add((by_key[key], value))

    for document in documents(overlay):
        look(document.get("spec", {}))
    return found


def test_objects_that_pods_refer_to_are_in_the_overlay_or_secrets_of_the_readme() -> None:
    by_hand = set()
    for overlay in OVERLAYS:
        here = {(one["kind"], one["metadata"]["name"]) for one in documents(overlay)}
        missing = referred(overlay) - here
        assert {kind for kind, _ in missing} == {"Secret"}, overlay
        by_hand |= {name for _, name in missing}
    assert by_hand == BY_HAND


@EVERY_OVERLAY
def test_clients_reach_only_the_api_and_by_tls(overlay: str) -> None:
    ingresses, routes = of_kind(overlay, "Ingress"), of_kind(overlay, "HTTPRoute")
    (rule,) = [rule for one in (*ingresses, *routes) for rule in one["spec"]["rules"]]
    if ingresses:
        paths = {path["path"] for path in rule["http"]["paths"]}
        assert ingresses[0]["spec"]["tls"]
        arguments = yaml.safe_load(ray_service(overlay)["spec"]["serveConfigV2"])["applications"][0]["args"]
        annotations = {key.rsplit("/", 1)[1]: value for key, value in ingresses[0]["metadata"]["annotations"].items()}
        assert annotations["proxy-body-size"] == f"{config_of(arguments).max_body_mib:g}m"
        assert annotations["proxy-buffering"] == "off"
        assert int(annotations["proxy-read-timeout"]) >= 3600
    else:
        paths = {match["path"]["value"] for match in rule["matches"]}
        (gateway,) = of_kind(overlay, "Gateway")
        assert [listener["protocol"] for listener in gateway["spec"]["listeners"]] == ["HTTPS"]
    assert paths == {"/v1", "/tokenize", "/detokenize", "/health", "/ready"}


@EVERY_OVERLAY
def test_traffic_is_denied_unless_a_policy_permits_it(overlay: str) -> None:
    policies = {one["metadata"]["name"]: one["spec"] for one in of_kind(overlay, "NetworkPolicy")}
    assert policies["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    rules = [(name, rule) for name, policy in policies.items() for rule in policy.get("ingress", ())]
    assert all(rule.get("from") and (rule.get("ports") or name == "ray") for name, rule in rules)
    ports = {port["port"] for _, rule in rules for port in rule.get("ports", ())}
    assert ports == {8000, 8080, 8265, 6379, 9121}  # not Ray's client port (10001), not the agents' (52365)


@EVERY_OVERLAY
def test_disruption_budgets_cover_the_edge_and_redis_alone(overlay: str) -> None:
    selected = [one["spec"]["selector"]["matchLabels"] for one in of_kind(overlay, "PodDisruptionBudget")]
    assert selected == [
        {"app.kubernetes.io/name": "spectra-serve", "app.kubernetes.io/component": "edge"},
        {"app.kubernetes.io/name": "spectra-redis"},
    ]


@EVERY_OVERLAY
def test_pods_of_ray_have_the_environment_of_a_node_and_the_pinned_version(overlay: str) -> None:
    service = ray_service(overlay)
    for group, pod in pods(service):
        given = {entry["name"]: entry.get("value", "") for entry in pod["containers"][0]["env"]}
        assert given | node_environment() == given, group
        assert given.keys() - node_environment().keys() - OF_RETRIEVAL == OF_PODS, group
        assert group == "edge" or not OF_RETRIEVAL & given.keys(), group
    pinned = (FOLDER.parent / ".ci" / "constraints.txt").read_text().splitlines()
    assert f"ray=={service['spec']['rayClusterConfig']['rayVersion']}" in pinned
    edge = dict(pods(service))["edge"]
    (term,) = edge["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"


@EVERY_OVERLAY
def test_pods_have_the_volumes_that_the_image_writes_to(overlay: str) -> None:
    service = ray_service(overlay)
    (written,) = re.findall(r"^# Writable at run time.*: (.*)\.$", DOCKERFILE, re.MULTILINE)
    for group, pod in pods(service):
        volumes = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
        mounts = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"] if mount["name"] in volumes}
        assert mounts == set(written.split(", ")), group
        assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]) == (10001, 10001)
    cluster = service["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (shared,) = [volume["emptyDir"] for volume in group["template"]["spec"]["volumes"] if volume["name"] == "shm"]
        assert shared["medium"] == "Memory"
        size = int(shared["sizeLimit"].removesuffix("Gi")) << 30
        assert int(group["rayStartParams"]["object-store-memory"]) <= size // 2


def test_the_image_runs_as_the_pods_user_and_installs_pinned_packages() -> None:
    parts = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    stages = {match[1]: part for part in parts if (match := re.match(r"\S+ AS (\S+)\n", part))}
    for target in ("cpu", "cuda"):
        assert re.findall(r"^USER (.*)$", stages[target], re.MULTILINE)[-1] == "10001:10001", target
    for line in re.findall(r"pip install .*", DOCKERFILE):
        assert "constraints.txt" in line, line


def test_the_cpu_image_has_the_default_model_where_the_server_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert re.findall(r"pip install .* (llm-\S+)", DOCKERFILE) == [REQUIREMENT]
    (target,) = re.findall(r'mv "\$converted" (\S+)', DOCKERFILE)
    installed, _, folder = target.rpartition(f"{PACKAGE}/")
    assert installed.endswith("/site-packages/")
    package = tmp_path / PACKAGE
    (package / folder).mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / f"{DEFAULT_MODEL}.Q4_1.gguf").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert default_model() == str(package / folder)
    (package / folder).rmdir()
    assert default_model() == str(package / f"{DEFAULT_MODEL}.Q4_1.gguf")
