"""What is committed is what the overlays make."""

from __future__ import annotations

import re
import shutil
import warnings
from pathlib import Path

import pytest
import yaml

from app.cli import main
from tests.support.manifests import FOLDER, OVERLAYS, Document, ray_service, rendered

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing Serve warns
    import app.serving.kubernetes.render  # noqa: F401

RENDER = "`spectra k8s render --overlay {0} --output k8s/rendered/{0}.yaml` makes it anew"


def objects(file: Path) -> dict[tuple[str, str], Document]:
    """What a file of manifests holds, by kind and name."""
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.load_all(file.read_text(), yaml.CSafeLoader)}


def test_every_overlay_is_rendered() -> None:
    assert sorted(path.stem for path in (FOLDER / "rendered").iterdir()) == OVERLAYS
    assert {"cpu-demo", "h100-4stage", "h100-2x4", "multi-tenant"} <= set(OVERLAYS)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_rendered_files_deploy_the_serve_config_of_their_overlay(overlay: str) -> None:
    config = (FOLDER / "overlays" / overlay / "serve-config.yaml").read_text()
    assert ray_service(overlay)["spec"]["serveConfigV2"] == config, RENDER.format(overlay)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_rendered_files_are_current(overlay: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "manifests.yaml"
    status = main(["k8s", "render", "--folder", str(FOLDER), "--overlay", overlay, "--output", str(output)])
    if shutil.which("kubectl") is None:  # the test above has compared what there is to compare
        assert status == 2
        assert "there is no kubectl" in capsys.readouterr().err
        return
    assert status == 0, capsys.readouterr().err
    # Documents, not bytes: versions of kubectl write the same in another order.
    assert objects(output) == objects(rendered(overlay)), RENDER.format(overlay)


def test_every_component_is_in_an_overlay() -> None:
    texts = [(FOLDER / "overlays" / overlay / "kustomization.yaml").read_text() for overlay in OVERLAYS]
    texts += [path.read_text() for path in FOLDER.glob("components/*/kustomization.yaml")]
    for component in (FOLDER / "components").iterdir():
        assert any(re.search(rf"/{component.name}\b", text) for text in texts), component.name
