"""``spectra k8s render``: what is wrong in an overlay is said before anything is rendered."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli import main
from tests.support.manifests import FOLDER

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing Serve warns
    import app.serving.kubernetes.render  # noqa: F401

Render = Callable[..., tuple[int, str, str]]


@pytest.fixture
def render(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Render:
    """(status, output, errors) of an overlay of a copy of k8s, in whose Serve config the first text is the second."""
    folder = tmp_path / "k8s"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("rendered", "crds"))

    def run(overlay: str, was: str = "", now: str = "", *flags: str) -> tuple[int, str, str]:
        config = folder / "overlays" / overlay / "serve-config.yaml"
        if was:
            assert was in config.read_text()
            config.write_text(config.read_text().replace(was, now))
        status = main(["k8s", "render", "--folder", str(folder), "--overlay", overlay, *flags])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.mark.parametrize(
    ("overlay", "was", "now", "says"),
    [
        ("cpu-demo", "stages: 2", "stagess: 2", "args: stagess is unknown; stages is meant?"),
        ("cpu-demo", "proxy_location", "proxy_locations", "proxy_locations is unknown to Serve"),
        ("cpu-demo", "stages: 2", "stages: 0", "stages is 0; it must be at least 1"),
        ("cpu-demo", "method: auto", "method: magic", "unknown method 'magic'"),
        ("h100-4stage", "model: /models/llama", "model: ./llama", "model './llama"),
        ("multi-tenant", "api_keys: /etc", "tenant_header: X\n      api_keys: /etc", "tenant_header"),
    ],
)
def test_a_serve_config_that_is_wrong_is_not_rendered(
    render: Render, overlay: str, was: str, now: str, says: str
) -> None:
    status, out, err = render(overlay, was, now)
    assert (status, out) == (2, "")
    assert "serve-config.yaml: " in err
    assert says in err


def test_what_does_not_fit_the_pods_is_not_rendered(render: Render) -> None:
    status, out, err = render("cpu-demo", "grace: 870", "grace: 1000")
    assert (status, out) == (2, "")
    has_kubectl = shutil.which("kubectl") is not None
    assert ("it must be above grace, drain and 5 s, 1005" if has_kubectl else "there is no kubectl") in err


def test_an_unknown_overlay_is_named_with_the_nearest(render: Render, tmp_path: Path) -> None:
    config = tmp_path / "k8s" / "overlays" / "cpu-demos"
    assert "cpu-demo is meant?" in refusal(tmp_path / "k8s", config.name)
    assert "has cpu-demo, h100-2x4, h100-4stage, h100-spread, multi-tenant" in refusal(tmp_path / "k8s", "mine")
    assert "(--folder) has no overlays" in refusal(tmp_path, "cpu-demo")


def refusal(folder: Path, overlay: str) -> str:
    from app.serving.kubernetes.render import render
    from engine.errors import ConfigError

    with pytest.raises(ConfigError) as raised:
        render(folder, overlay)
    return str(raised.value)


def test_without_kubectl_it_says_where_rendered_files_are(render: Render, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    status, out, err = render("cpu-demo")
    assert (status, out) == (2, "")
    assert "there is no kubectl" in err
    assert "k8s/rendered" in err
