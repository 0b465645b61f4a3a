"""Manifests for Kubernetes: an overlay and its Serve config, checked and rendered by kustomize."""

from __future__ import annotations

import shutil
import subprocess
from difflib import get_close_matches
from pathlib import Path

import yaml

from app.config.errors import config_of
from app.serving.deploy_file import check_deploy_file, is_ours
from app.serving.kubernetes.agreement import disagreements
from app.serving.kubernetes.operator_rules import refused_by_operator
from app.serving.kubernetes.pods import Object
from engine.errors import ConfigError

SERVE_CONFIG = "serve-config.yaml"  # in every overlay; becomes the RayService's spec.serveConfigV2


def render(folder: Path, overlay: str) -> str:
    """The manifests of an overlay, as ``kubectl apply -f`` takes them.

    Args:
        folder: that holds ``overlays``, ``base`` and what they refer to.
        overlay: name of one.

    Raises:
        ConfigError: there is no such overlay, its Serve config is wrong or not what its RayService deploys, kustomize
            refuses it, KubeRay would, its pods do not fit what is served, or there is no kubectl.
    """
    place = _overlay(folder, overlay)
    config = place / SERVE_CONFIG
    wrong = check_deploy_file(config, elsewhere=True)
    if wrong:
        raise ConfigError("\n".join(f"{config}: {sentence}" for sentence in wrong))
    rendered = _kustomize(place)
    services = [one for one in yaml.safe_load_all(rendered) if one["kind"] == "RayService"]
    if [one["spec"]["serveConfigV2"] for one in services] != [config.read_text(encoding="utf-8")]:
        raise ConfigError(
            f"{place} must make one RayService that deploys its {SERVE_CONFIG}: a replacement puts it there, as in the "
            "overlays of this project"
        )
    wrong = wrong_in(services[0])
    if wrong:
        raise ConfigError("\n".join(f"{place}: {sentence}" for sentence in wrong))
    return f"# Made by `spectra k8s render --overlay {overlay}`; change the overlay, not this.\n{rendered}"


def wrong_in(service: Object) -> list[str]:
    """What KubeRay would refuse in a RayService whose Serve config is right, and where that does not fit the pods."""
    deployed = yaml.safe_load(service["spec"]["serveConfigV2"])
    ours = [config_of(one.get("args", {})) for one in deployed["applications"] if is_ours(one["import_path"])]
    return [*refused_by_operator(service), *(one for config in ours for one in disagreements(service, config))]


def _overlay(folder: Path, name: str) -> Path:
    place = folder / "overlays" / name
    if (place / SERVE_CONFIG).is_file():
        return place
    known = sorted(path.parent.name for path in folder.glob(f"overlays/*/{SERVE_CONFIG}"))
    if not known:
        raise ConfigError(
            f"{folder} (--folder) has no overlays with a {SERVE_CONFIG}; this project's manifests are in the folder "
            "k8s of its sources, not in the wheel"
        )
    near = get_close_matches(name, known, 1)
    raise ConfigError(
        f"--overlay is {name!r}; "
        + (f"{near[0]} is meant?" if near else f"{folder / 'overlays'} has {', '.join(known)}")
    )


def _kustomize(place: Path) -> str:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise ConfigError(
            "there is no kubectl, whose `kubectl kustomize` (5.0 or later) renders manifests; those of this project's "
            "overlays lie rendered in k8s/rendered"
        )
    done = subprocess.run([kubectl, "kustomize", str(place)], capture_output=True, text=True)
    if done.returncode != 0:
        raise ConfigError(f"kubectl kustomize {place} fails: {' '.join(done.stderr.split())}")
    return done.stdout
