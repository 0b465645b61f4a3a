"""Overlays, dashboards and the image: Kubernetes, KubeRay, kustomize and hadolint accept them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from app.serving.kubernetes.render import GENERATED, render
from engine.errors import ConfigError
from tests.support.manifests import FOLDER, OVERLAYS, complete_folder, documents, ray_service
from tools.monitoring.files import BOARDS

OTHER_SCHEMAS = {"RayService", "Gateway", "HTTPRoute", "ScrapeConfig", "PodMonitor", "PrometheusRule"}


def test_every_component_is_used() -> None:
    texts = [path.read_text() for path in FOLDER.glob("*/*/kustomization.yaml")]
    for component in (FOLDER / "components").iterdir():
        assert any(re.search(rf"/{component.name}\b", text) for text in texts), component.name


def test_rules_that_are_not_made_yet_are_named_with_the_command_that_makes_them(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "k8s", ignore=shutil.ignore_patterns(GENERATED))
    with pytest.raises(ConfigError, match=re.escape("`python -m tools.monitoring` makes prometheusrule.yaml")):
        render(tmp_path / "k8s", "h100-2x4")


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


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_deploys_its_serve_config_and_fits_the_schemas(overlay: str) -> None:
    config = FOLDER / "overlays" / overlay / "serve-config.yaml"
    assert ray_service(overlay)["spec"]["serveConfigV2"] == config.read_text()
    kuberay = Draft202012Validator(strict(json.loads((FOLDER / "crds" / "rayservice-v1.json").read_text())))
    for document in documents(overlay):
        if document["kind"] == "RayService":
            assert [error.message for error in kuberay.iter_errors(document)] == []
        elif document["kind"] not in OTHER_SCHEMAS:
            kubernetes_validate.validate(document, "1.33", strict=True)


def test_dashboards_become_one_config_map_each() -> None:
    with complete_folder() as folder:
        command = [Path(sys.executable).with_name("kubectl"), "kustomize", folder / "dashboards"]
        maps = list(yaml.safe_load_all(subprocess.run(command, capture_output=True, check=True).stdout))
    assert {name for one in maps for name in one["data"]} == {f"{board.name}.json" for board in BOARDS}


def test_hadolint_accepts_the_dockerfile() -> None:
    command = [Path(sys.executable).with_name("hadolint"), FOLDER / "image" / "Dockerfile"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
