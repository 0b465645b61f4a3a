"""RayServices by KubeRay's own schema, made strict: a field that it does not know is an error, not dropped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support.manifests import FOLDER, OVERLAYS, Document, ray_service

# What KubeRay's schema leaves open, because Kubernetes checks it itself
METADATA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "namespace": {"type": "string"},
        **{name: {"type": "object", "additionalProperties": {"type": "string"}} for name in ("labels", "annotations")},
    },
    "additionalProperties": False,
}


def strict(schema: Any) -> Any:
    """Every object that lists its properties has no others."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if made.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if made.get("type") == "object" and "properties" in made and "additionalProperties" not in made:
        made["additionalProperties"] = False
    return made


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = strict(json.loads((FOLDER / "crds" / "rayservice-v1.json").read_text()))
    schema["properties"]["metadata"] = METADATA
    cluster = schema["properties"]["spec"]["properties"]["rayClusterConfig"]["properties"]
    for template in (
        cluster["headGroupSpec"]["properties"]["template"],
        cluster["workerGroupSpecs"]["items"]["properties"]["template"],
    ):
        template["properties"]["metadata"] = METADATA
    schema["properties"]["spec"]["properties"]["serveService"]["properties"]["metadata"] = METADATA
    return Draft202012Validator(schema)


def wrong(validator: Draft202012Validator, service: Document) -> Iterator[str]:
    for error in validator.iter_errors(service):
        yield f"{'.'.join(map(str, error.absolute_path))}: {error.message}"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kuberay_knows_every_field(validator: Draft202012Validator, overlay: str) -> None:
    assert list(wrong(validator, ray_service(overlay))) == []


HEAD = "spec.rayClusterConfig.headGroupSpec.template"


@pytest.mark.parametrize(
    ("place", "key", "value", "says"),
    [
        (f"{HEAD}.spec.containers.0", "imagePulPolicy", "Always", "'imagePulPolicy' was unexpected"),
        (f"{HEAD}.spec.containers.0", "image", 3, "3 is not of type 'string'"),
        (f"{HEAD}.metadata.labels", "a", 1, "1 is not of type 'string'"),
        (f"{HEAD}.spec.containers.0.securityContext", "readOnlyRootFileSystem", True, "was unexpected"),
        (f"{HEAD}.spec.containers.0.env.0", "val", "1", "'val' was unexpected"),
        ("spec", "rayClusterDeletionDelaySeconds", -1, "-1 is less than the minimum of 0"),
        ("spec", "serveConfig", "", "'serveConfig' was unexpected"),
        ("spec.rayClusterConfig.authOptions", "mode", "tokens", "'tokens' is not one of"),
        ("spec.rayClusterConfig.gcsFaultToleranceOptions", "redisAdress", "", "'redisAdress' was unexpected"),
        ("spec.rayClusterConfig.workerGroupSpecs.0", "replicas", "2", "'2' is not of type 'integer'"),
        ("metadata", "annotation", {}, "'annotation' was unexpected"),
    ],
)
def test_what_is_misspelt_or_of_another_type_is_named(
    validator: Draft202012Validator, place: str, key: str, value: Any, says: str
) -> None:
    service = ray_service("cpu-demo")
    at: Any = service
    for part in place.split("."):
        at = at[int(part)] if part.isdigit() else at[part]
    at[key] = value
    (sentence,) = wrong(validator, service)
    assert sentence.startswith(place)
    assert says in sentence
