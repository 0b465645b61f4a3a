"""The manifests of every overlay, rendered with kustomize once a process."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from app.serving.kubernetes.render import render
from tools.monitoring.files import made

FOLDER = Path(__file__).resolve().parents[2] / "k8s"
OVERLAYS = sorted(path.name for path in (FOLDER / "overlays").iterdir())
Document = dict[str, Any]


@contextmanager
def complete_folder() -> Iterator[Path]:
    """Yield a copy of k8s/ with the files that `python -m tools.monitoring` writes."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(FOLDER, Path(folder) / "k8s")
        for path, text in made().items():
            (Path(folder) / path).write_text(text)
        yield Path(folder) / "k8s"


@cache
def rendered(overlay: str) -> str:
    """Return the manifests of an overlay as `spectra k8s render` prints them."""
    with complete_folder() as folder:
        return render(folder, overlay)


def documents(overlay: str) -> list[Document]:
    """Return all objects of an overlay."""
    return list(yaml.load_all(rendered(overlay), yaml.CSafeLoader))


def of_kind(overlay: str, kind: str) -> list[Document]:
    return [document for document in documents(overlay) if document["kind"] == kind]


def ray_service(overlay: str) -> Document:
    (service,) = of_kind(overlay, "RayService")
    return service


def pods(document: Document) -> Iterator[tuple[str, Document]]:
    """Yield (name, spec) of every pod that an object makes."""
    if document["kind"] == "RayService":
        cluster = document["spec"]["rayClusterConfig"]
        yield "head", cluster["headGroupSpec"]["template"]["spec"]
        for group in cluster["workerGroupSpecs"]:
            yield group["groupName"], group["template"]["spec"]
    elif document["kind"] in ("StatefulSet", "Job", "Deployment"):
        yield document["metadata"]["name"], document["spec"]["template"]["spec"]
    elif document["kind"] == "CronJob":
        yield document["metadata"]["name"], document["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def containers(pod: Document) -> list[Document]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def redis_users(password: str) -> str:
    """Return the file of Redis users of k8s/README.md, all with this password."""
    (users,) = re.findall(r"```\n(user default off\n.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    return str(users).replace("#DIGEST", "#" + hashlib.sha256(password.encode()).hexdigest())


def redis_config() -> str:
    return (FOLDER / "redis" / "redis.conf").read_text()
