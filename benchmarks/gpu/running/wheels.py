"""Downloads the wheels that a bare machine lacks: its Python and platform, whatever those of this machine are.

The machine that these checks were written for has Python 3.12 on x86-64 Linux with torch 2.11+cu130, Triton 3.6,
transformers, accelerate, safetensors and numba; it lacks msgspec. There, from the wheels' folder, without a network:

    python3 -m pip install --no-index --no-deps --target /tmp/site DIR/*.whl && export PYTHONPATH=/tmp/site

Versions are those that pyproject.toml pins.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.running.checks import ROOM

NEEDED = ("msgspec",)
PYTHON = "3.12"
GLIBC = (17, 24, 27, 28, 34)  # pip takes a wheel only of a platform that it is told of: manylinux_2_N


def main(arguments: Sequence[str] | None = None) -> int:
    """Download; returns pip's exit status."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python3 -m benchmarks.gpu wheels", description=__doc__, formatter_class=raw)
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the wheels go")
    parser.add_argument("packages", nargs="*", help=f"others than {', '.join(NEEDED)}; NAME or NAME==VERSION")
    parser.add_argument("--python", default=PYTHON, help=f"of that machine (default: {PYTHON})")
    asked = parser.parse_args(arguments)
    asked.folder.mkdir(parents=True, exist_ok=True)
    status = subprocess.run(command(asked.folder, asked.packages or NEEDED, asked.python)).returncode
    for wheel in sorted(asked.folder.glob("*.whl")):
        print(f"{wheel}  {wheel.stat().st_size / 1e6:.1f} MB")
    return status


def command(folder: Path, packages: Sequence[str], python: str) -> list[str]:
    """What downloads the packages, and nothing that they need in turn: that is there."""
    platforms = [f"manylinux_2_{n}_x86_64" for n in GLIBC] + ["manylinux2014_x86_64", "manylinux1_x86_64"]
    options = ["--no-deps", "--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    for platform in platforms:
        options += ["--platform", platform]
    return [sys.executable, "-m", "pip", "download", *options, "-d", str(folder), *map(pinned, packages)]


def pinned(package: str) -> str:
    """``NAME==VERSION`` as pyproject.toml pins it, or the package as it was given."""
    project = tomllib.loads((ROOM.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    return next((one for one in known if re.split(r"[\[=<>]", one)[0] == package), package)
