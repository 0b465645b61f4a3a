"""Prints pip constraints: the lowest versions that ``pyproject.toml`` allows, and CI's versions of what tests need.

    python -m tools.lowest_versions

``make test-lowest`` installs them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOWEST = (">=", "~=", "==")


def lowest_versions() -> Iterator[str]:
    """Yield a line ``name==version`` for each requirement. Requirements of requirements are free."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (line.split("==") for line in (ROOT / ".ci" / "constraints.txt").read_text().splitlines())
    pins = {canonicalize_name(name): version for name, version in lines}
    groups = project["dependencies"], *project["optional-dependencies"].values()
    for one in (Requirement(line) for group in groups for line in group):
        if one.name != project["name"]:
            lowest = (part.version for part in one.specifier if part.operator in LOWEST)
            yield f"{one.name}=={next(lowest, None) or pins[canonicalize_name(one.name)]}"


if __name__ == "__main__":
    print(*lowest_versions(), sep="\n")
