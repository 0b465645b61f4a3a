"""The committed manifests are what the overlays render to, and the schemas of Kubernetes and KubeRay accept them."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from app.cli import main
from app.serving.deploy_file import check_deploy_file
from tests.support.lacking import lacking
from tests.support.manifests import FOLDER, OVERLAYS, Document, documents, ray_service

OTHER_SCHEMAS = {"RayService", "Gateway", "HTTPRoute", "ScrapeConfig", "PodMonitor", "PrometheusRule"}


def test_every_overlay_is_rendered_with_its_serve_config_and_every_component_is_used() -> None:
    assert sorted(path.stem for path in (FOLDER / "rendered").iterdir()) == OVERLAYS
    for overlay in OVERLAYS:
        config = FOLDER / "overlays" / overlay / "serve-config.yaml"
        assert check_deploy_file(config, elsewhere=True) == []
        assert ray_service(overlay)["spec"]["serveConfigV2"] == config.read_text(), f"render {overlay} again"
    texts = [path.read_text() for path in FOLDER.glob("*/*/kustomization.yaml")]
    for component in (FOLDER / "components").iterdir():
        assert any(re.search(rf"/{component.name}\b", text) for text in texts), component.name


def strict(schema: Any) -> Any:
    """Return the schema with unknown fields forbidden: KubeRay drops them silently."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if made.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if made.get("type") == "object" and "properties" in made:
        made.setdefault("additionalProperties", False)
    return made


@pytest.mark.cluster
def test_overlays_render_to_the_committed_manifests_and_fit_the_schemas(
    capsys: pytest.CaptureFixture[str],
) -> None:
    if shutil.which("kubectl") is None:
        lacking("kubectl not found")
    kuberay = Draft202012Validator(strict(json.loads((FOLDER / "crds" / "rayservice-v1.json").read_text())))
    for overlay in OVERLAYS:
        assert main(["k8s", "render", "--folder", str(FOLDER), "--overlay", overlay]) == 0
        rendered: list[Document] = list(yaml.load_all(capsys.readouterr().out, yaml.CSafeLoader))
        # Documents, not bytes: versions of kubectl write the same objects in another order.
        assert by_name(rendered) == by_name(documents(overlay)), f"render {overlay} again"
        for document in rendered:
            if document["kind"] == "RayService":
                assert [error.message for error in kuberay.iter_errors(document)] == []
            elif document["kind"] not in OTHER_SCHEMAS:
                kubernetes_validate.validate(document, "1.33", strict=True)


def by_name(objects: list[Document]) -> dict[tuple[str, str], Document]:
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}
