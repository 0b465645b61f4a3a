"""The manifests of this checkout, as they are committed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[2] / "k8s"
OVERLAYS = sorted(path.name for path in (FOLDER / "overlays").iterdir())
Document = dict[str, Any]


def rendered(overlay: str) -> Path:
    """File of the manifests of an overlay."""
    return FOLDER / "rendered" / f"{overlay}.yaml"


def documents(overlay: str) -> list[Document]:
    """All objects of an overlay."""
    return list(yaml.load_all(rendered(overlay).read_text(), yaml.CSafeLoader))  # ten times as fast as in Python


def of_kind(overlay: str, kind: str) -> list[Document]:
    """Those of one kind."""
    return [document for document in documents(overlay) if document["kind"] == kind]


def ray_service(overlay: str) -> Document:
    """The RayService of an overlay."""
    (service,) = of_kind(overlay, "RayService")
    return service


def pods(document: Document) -> Iterator[tuple[str, Document]]:
    """(where, spec) of every pod that an object makes."""
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
    """Of a pod, those that run before the others included."""
    found: list[Document] = [*pod.get("initContainers", ()), *pod["containers"]]
    return found


def redis_users(password: str) -> str:
    """The file of Redis users of k8s/README.md, in which all have this password."""
    (users,) = re.findall(r"```\n(user default off\n.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    return str(users).replace("#DIGEST", "#" + hashlib.sha256(password.encode()).hexdigest())


def redis_config() -> str:
    """What the pods of Redis read at /etc/redis/redis.conf."""
    return (FOLDER / "redis" / "redis.conf").read_text()
