"""Everything that is Kubernetes' own, by its published schemas, and what every container has."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate
import pytest
import yaml

from app.config.errors import config_of
from tests.support.manifests import FOLDER, OVERLAYS, Document, containers, documents, of_kind, pods

VERSIONS = ("1.33", "1.36")  # of Kubernetes; 1.33 is the first with matchLabelKeys in affinities for good
CORE = re.compile(r"^(v1|(apps|batch|policy)/v1|.*\.k8s\.io/v1)$")
ELSEWHERE = {"RayService", "Gateway", "HTTPRoute", "ScrapeConfig", "PodMonitor", "PrometheusRule"}


def core(overlay: str) -> list[Document]:
    return [one for one in documents(overlay) if one["kind"] not in ELSEWHERE]


def validate(document: Document, version: str) -> None:
    assert CORE.match(document["apiVersion"]), document["apiVersion"]
    kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_knows_every_field(overlay: str, version: str) -> None:
    found = core(overlay)
    for document in found:
        validate(document, version)
    assert {"Service", "NetworkPolicy", "PodDisruptionBudget"} <= {one["kind"] for one in found}


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("PodDisruptionBudget", lambda spec: spec.update(minAvailible=1)),
        ("NetworkPolicy", lambda spec: spec.update(policyType=["Ingress"])),
        ("Ingress", lambda spec: spec["rules"][0]["http"]["paths"][0].pop("pathType")),
        ("StatefulSet", lambda spec: spec["template"]["spec"]["containers"][0].update(image=1)),
        ("CronJob", lambda spec: spec["jobTemplate"]["spec"].update(backOffLimit=1)),
    ],
)
def test_what_is_misspelt_is_refused(kind: str, spoil: Any) -> None:
    document = of_kind("cpu-demo", kind)[0]
    spoil(document["spec"])
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(document, VERSIONS[-1])


def every_container() -> list[Any]:
    return [
        pytest.param(document["kind"], pod, container, id=f"{overlay}-{where}-{container['name']}")
        for overlay in OVERLAYS
        for document in documents(overlay)
        for where, pod in pods(document)
        for container in containers(pod)
    ]


@pytest.mark.parametrize(("kind", "pod", "container"), every_container())
def test_every_container_is_bounded_and_may_do_nothing(kind: str, pod: Document, container: Document) -> None:
    resources = container["resources"]
    assert resources["limits"] == resources["requests"], "nothing is promised that is not there"
    assert {"cpu", "memory"} <= resources["limits"].keys()
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    context = pod["securityContext"]
    assert context["runAsNonRoot"]
    assert context["runAsUser"] > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert ":" in container["image"], "an image without a tag changes by itself"
    assert not container["image"].endswith(":latest")
    if kind == "StatefulSet":  # KubeRay gives Ray's containers theirs, and Jobs end
        assert {"readinessProbe", "livenessProbe"} <= container.keys()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_get_no_token_of_kubernetes_but_for_a_head_that_scales(overlay: str) -> None:
    for document in documents(overlay):
        scales = document.get("spec", {}).get("rayClusterConfig", {}).get("enableInTreeAutoscaling", False)
        for where, pod in pods(document):
            assert pod.get("automountServiceAccountToken", True) is (where == "head" and scales), where


def referred(overlay: str) -> set[tuple[str, str]]:
    """(kind, name) of what pods and ingresses of an overlay need."""
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
                look(inner)
        elif key in ("secretName", "claimName", "serviceAccountName", "priorityClassName"):
            found.add(
                (
                    {"claimName": "PersistentVolumeClaim"}.get(key) or key[0].upper() + key[1:].removesuffix("Name"),
                    value,
                )
            )

    for document in documents(overlay):
        look(document.get("spec", {}))
        for listener in document.get("spec", {}).get("listeners", ()):
            found |= {("Secret", certificate["name"]) for certificate in listener["tls"]["certificateRefs"]}
    return found


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_pods_refer_to_is_made_here_or_said_to_be_made_by_hand(overlay: str) -> None:
    here = {(one["kind"], one["metadata"]["name"]) for one in documents(overlay)}
    by_hand = set(re.findall(r"^\| `([a-z-]+)` \|", (FOLDER / "README.md").read_text(), re.MULTILINE))
    needed = referred(overlay) - here
    assert ("Secret", "spectra-redis-users") in needed
    assert {kind for kind, _ in needed} == {"Secret"}
    assert {name for _, name in needed} <= by_hand


def test_every_secret_of_the_readme_is_needed_by_an_overlay() -> None:
    by_hand = set(re.findall(r"^\| `([a-z-]+)` \|", (FOLDER / "README.md").read_text(), re.MULTILINE))
    assert by_hand == {name for overlay in OVERLAYS for kind, name in referred(overlay) if kind == "Secret"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_clients_reach_only_what_is_theirs_and_by_tls(overlay: str) -> None:
    ingresses, routes = of_kind(overlay, "Ingress"), of_kind(overlay, "HTTPRoute")
    (rule,) = [rule for one in (*ingresses, *routes) for rule in one["spec"]["rules"]]
    if ingresses:
        paths = {path["path"] for path in rule["http"]["paths"]}
        assert ingresses[0]["spec"]["tls"]
    else:
        paths = {match["path"]["value"] for match in rule["matches"]}
        (gateway,) = of_kind(overlay, "Gateway")
        assert [listener["protocol"] for listener in gateway["spec"]["listeners"]] == ["HTTPS"]
    assert paths == {"/v1", "/tokenize", "/detokenize", "/health", "/ready"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_is_not_permitted_is_denied(overlay: str) -> None:
    policies = {one["metadata"]["name"]: one["spec"] for one in of_kind(overlay, "NetworkPolicy")}
    assert policies["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    open_to_all = [
        name
        for name, policy in policies.items()
        for rule in policy.get("ingress", ())
        if not rule.get("from") or (not rule.get("ports") and name != "ray")
    ]
    assert open_to_all == []
    ports = {
        port["port"] for spec in policies.values() for rule in spec.get("ingress", ()) for port in rule.get("ports", ())
    }
    assert ports == {8000, 8080, 8265, 6379, 9121}  # no client's port (10001), no agent's (52365)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_budgets_are_for_pods_that_can_be_ready_again_and_stages_have_none(overlay: str) -> None:
    selected = [one["spec"]["selector"]["matchLabels"] for one in of_kind(overlay, "PodDisruptionBudget")]
    assert selected == [
        {"app.kubernetes.io/name": "spectra-serve", "app.kubernetes.io/component": "edge"},
        {"app.kubernetes.io/name": "spectra-redis"},
    ]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_ingress_lets_the_largest_body_through_and_holds_no_event_back(overlay: str) -> None:
    for ingress in of_kind(overlay, "Ingress"):
        (service,) = of_kind(overlay, "RayService")
        arguments = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"][0]["args"]
        said = {name.rsplit("/", 1)[1]: value for name, value in ingress["metadata"]["annotations"].items()}
        assert said["proxy-body-size"] == f"{config_of(arguments).max_body_mib:g}m"
        assert said["proxy-buffering"] == "off"
        assert int(said["proxy-read-timeout"]) >= 3600
